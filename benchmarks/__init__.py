"""How long a cleanup takes, and how much memory, beside the shell pipeline and what the kernel alone needs.

`benchmarks/run` runs it; docs/performance.md says what is measured.
"""
