// The input of a linear layer is RMS-normalized: the gain here, the common factor at the end.
const NORM = true;
fn prepare_input(lane: u32) {}
fn input(i: u32) -> vec4<f32> { return x[i]; }
fn gain(i: u32) -> vec4<f32> { return norm_quants[i]; }
