// y = finish(W . x + bias) for one token: TEAM lanes share ROWS rows of each part.
override K: u32;
override N: u32;
override EPS: f32 = 0.0;
override GRID_X: u32 = 65535u;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let blocks = K / 32u;
  let team = (group.y * GRID_X + group.x) * (WORKGROUP / TEAM) + lane / TEAM;
  let first = team * ROWS;
  prepare_input(lane);
  var acc: array<f32, ROWS * PARTS>;
  var square = 0.0;
  for (var b = lane % TEAM; b < blocks; b += TEAM) {
    var xs: array<vec4<f32>, 8>;
    var total = vec4<f32>(0.0);
    for (var j = 0u; j < 8u; j++) {
      var v = input(b * 8u + j);
      if (NORM) {
        square += dot(v, v);
        v *= gain(b * 8u + j);
      }
      xs[j] = v;
      total += v;
    }
    let sum = total.x + total.y + total.z + total.w;
    for (var r = 0u; r < ROWS; r++) {
      for (var p = 0u; p < PARTS; p++) {
        let w = load_block((min(first + r, N - 1u) + p * N) * blocks + b);
        var d = 0.0;
        for (var j = 0u; j < 8u; j++) { d += dot(w.q[j], xs[j]); }
        acc[r * PARTS + p] += w.d * d + w.m * sum;
      }
    }
  }
  var factor = 1.0;
  if (NORM) { factor = inverseSqrt(team_sum(square, lane) / f32(K) + EPS); }
  for (var r = 0u; r < ROWS; r++) {
    var result: array<f32, PARTS>;
    for (var p = 0u; p < PARTS; p++) {
      result[p] = team_sum(acc[r * PARTS + p], lane) * factor + bias_of(first + r + p * N);
    }
    if (lane % TEAM == 0u && first + r < N) { finish(0u, first + r, result); }
  }
}
