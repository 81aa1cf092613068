"""The verdict for other rollout tools: Argo Rollouts, Flagger and Kayenta, over HTTP."""
