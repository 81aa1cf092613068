"""Control a rollout: its phases, its state on disk, and the server that it acts on."""
