// Gumbel noise for token i at a position: argmax(logit / T + noise) samples from softmax
// (Gumbel, 1954). The bits come from PCG (Jarzynski and Olano, 2020), so that a seed and a
// position fix the draw.
fn pcg(v: u32) -> u32 {
  let state = v * 747796405u + 2891336453u;
  let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
  return (word >> 22u) ^ word;
}

// -log(1 - v). WGSL's log may be off by 5e-7 near 1: as much as all of it where v is small, and the
// largest noise comes from there.
fn minus_log_but(v: f32) -> f32 {
  let series = v * (1.0 + v * (0.5 + v * (0.33333333 + v * (0.25 + v * 0.2))));
  return select(-log(1.0 - v), series, v < 0.0625);
}

fn gumbel(seed: u32, position: u32, i: u32) -> f32 {
  let bits = pcg(i ^ pcg(position ^ pcg(seed)));
  let missing = (8388607.5 - f32(bits >> 9u)) / 8388608.0;  // of 1, to a uniform value: both exact
  return -log(minus_log_but(missing));
}
