// The input of a linear layer is RMS-normalized: the gain here, the common factor at the end.
const NORM = true;
fn gain(i: u32) -> vec4<f32> { return norm_quants[i]; }
