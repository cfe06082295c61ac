// Products of a block of 32 weights, w = d * q + m, with activations x = s * xq (quantize.wgsl):
//   w . x = d * s * (q . xq) + m * s * sum(xq)
alias Scale = vec2<f32>;   // d, m
alias XScale = vec2<f32>;  // s, s * sum(xq)
alias Dot = i32;           // q . xq

fn load_x_scale(i: u32) -> XScale { return x_scales[i]; }

fn both_halves(lo: i32, hi: i32) -> Dot { return lo + hi; }

fn scaled(w: Scale, x: XScale, d: Dot) -> f32 { return w.x * x.x * f32(d) + w.y * x.y; }
