// Writes a number, so that a dispatch is there: see engine/measuring.py.
@compute @workgroup_size(1)
fn main() { y[0] = 0.0; }
