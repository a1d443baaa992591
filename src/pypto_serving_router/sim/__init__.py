"""The simulated replica: a stand-in for an engine where no NPU is at hand."""
