// d and m of a block of 32: two halves in a word.
fn load_scale(i: u32) -> vec2<f32> { return unpack2x16float(w_scales[i]); }
