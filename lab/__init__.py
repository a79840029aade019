"""The lab of Levada: testbeds in network namespaces, workloads, an oracle, experiments."""
