// What decides between tokens: the logit, or logit / temperature + Gumbel noise.
const LOWEST = -1.0e30;  // of a token that may not come

fn greedy() -> bool { return step.temperature <= 0.0; }
fn scale() -> f32 { return select(1.0 / step.temperature, 1.0, greedy()); }

fn score(z: f32, i: u32) -> f32 {
  if (greedy()) { return z; }
  return z * scale() + gumbel(step.seed, step.position + step.num_tokens, i);
}
