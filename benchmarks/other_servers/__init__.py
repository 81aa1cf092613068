"""The demonstration pair served by engines that others wrote, to try our gate and our rollouts on them."""
