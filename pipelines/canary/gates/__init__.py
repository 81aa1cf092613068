"""Serve the verdict of a rollout to other rollout tools: Argo Rollouts and Flagger."""
