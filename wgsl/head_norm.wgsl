// Normalizes every head of Q and K in place: x * gain / sqrt(mean(x^2) + EPS), a team of TEAM lanes
// a head. qkv rows hold Q, then K, then V heads; the gains of Q lie before those of K.
override EPS: f32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let quads = HEAD_DIM / 4u;
  let head = group.x * (WORKGROUP / TEAM) + lane / TEAM;
  let inside = head < Q_HEADS + KV_HEADS;
  let base = (group.y * (Q_HEADS + 2u * KV_HEADS) + head) * quads;
  let gains = select(quads, 0u, head < Q_HEADS);
  var square = 0.0;
  if (inside) {
    for (var i = lane % TEAM; i < quads; i += TEAM) { square += dot(qkv[base + i], qkv[base + i]); }
  }
  let factor = inverseSqrt(team_sum(square, lane) / f32(HEAD_DIM) + EPS);
  if (inside) {
    for (var i = lane % TEAM; i < quads; i += TEAM) {
      qkv[base + i] = qkv[base + i] * factor * gain_quants[gains + i];
    }
  }
}
