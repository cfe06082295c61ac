fn residual_of(i: u32) -> vec4<f32> { return residual[i]; }
