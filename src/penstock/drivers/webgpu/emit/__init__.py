"""Prints kernels of the compiler in WGSL, the shading language of WebGPU."""
