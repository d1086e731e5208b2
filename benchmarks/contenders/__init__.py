"""Contenders: each module is a program that runs rounds of one workload for a given time."""
