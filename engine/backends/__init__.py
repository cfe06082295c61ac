"""Devices that run plans: webgpu, cpu and null."""
