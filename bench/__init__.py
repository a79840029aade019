"""The benchmarks of Levada: A against B in one run, judged by the project's promised numbers."""
