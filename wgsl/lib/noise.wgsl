// Gumbel noise for token i at a position: argmax(logit / T + noise) samples from softmax
// (Gumbel, 1954). The bits come from PCG (Jarzynski and Olano, 2020), so that a seed and a
// position fix the draw.
fn pcg(v: u32) -> u32 {
  let state = v * 747796405u + 2891336453u;
  let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
  return (word >> 22u) ^ word;
}

fn gumbel(seed: u32, position: u32, i: u32) -> f32 {
  let bits = pcg(i ^ pcg(position ^ pcg(seed)));
  let uniform_value = (f32(bits >> 9u) + 0.5) / 8388608.0;
  return -log(-log(uniform_value));
}
