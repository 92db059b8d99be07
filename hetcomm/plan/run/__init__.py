"""What runs a layout: the job's groups, a rank's layers, their schedule and partition."""
