"""What is compared: each module is a program of its own that plays rounds of one workload until told to stop."""
