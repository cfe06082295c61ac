// Thirty-two quants that are signed bytes, in element order.
struct Quants { lo: vec4<u32>, hi: vec4<u32> }

fn load_quants(i: u32) -> Quants { return Quants(w_quants[2u * i], w_quants[2u * i + 1u]); }

fn floats(word: u32) -> vec4<f32> { return vec4<f32>(unpack4xI8(word)); }
