// The input of a linear layer is taken as it is.
const NORM = false;
fn gain(i: u32) -> vec4<f32> { return vec4<f32>(1.0); }
