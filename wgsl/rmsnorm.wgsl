// y = x * gain / sqrt(mean(x^2) + EPS) + residual, a team of TEAM lanes a token.
override K: u32;
override EPS: f32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let token = min(group.y * (WORKGROUP / TEAM) + lane / TEAM, step.num_tokens - 1u);
  let base = token * (K / 4u);
  var square = 0.0;
  for (var i = lane % TEAM; i < K / 4u; i += TEAM) { square += dot(x[base + i], x[base + i]); }
  let factor = inverseSqrt(team_sum(square, lane) / f32(K) + EPS);
  for (var i = lane % TEAM; i < K / 4u; i += TEAM) {
    y[base + i] = x[base + i] * factor * norm_quants[i] + residual_of(base + i);
  }
}
