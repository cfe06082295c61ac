// RMS normalization and, of its result, integers per block of 32 (see lib/quantize_block.wgsl);
// a team of TEAM lanes a token.
override K: u32;
override EPS: f32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let blocks = K / 32u;
  let token = min(group.y * (WORKGROUP / TEAM) + lane / TEAM, step.num_tokens - 1u);
  let base = token * (K / 4u);
  var square = 0.0;
  for (var i = lane % TEAM; i < K / 4u; i += TEAM) { square += dot(x[base + i], x[base + i]); }
  let factor = inverseSqrt(team_sum(square, lane) / f32(K) + EPS);
  for (var b = lane % TEAM; b < blocks; b += TEAM) {
    var block: array<vec4<f32>, 8>;
    for (var j = 0u; j < 8u; j++) {
      block[j] = x[base + b * 8u + j] * factor * norm_quants[b * 8u + j];
    }
    quantize_block(token * blocks + b, block);
  }
}
