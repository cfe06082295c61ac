fn residual_of(i: u32) -> vec4<f32> { return vec4<f32>(0.0); }
