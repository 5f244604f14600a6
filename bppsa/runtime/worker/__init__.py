"""Runs a program of jobs on workers: threads of this process, or ranks of torch.distributed."""
