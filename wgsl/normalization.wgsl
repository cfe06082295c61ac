// y = (x - mean) / sqrt(mean((x - mean)^2) + EPS) * gain + bias by rows, the mean only if CENTRED;
// a team of TEAM lanes a row.
override EPS: f32;
override CENTRED: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let base = row_of(group, groups, lane) * WIDTH;
  var mean = 0.0;
  if (CENTRED == 1u) {
    for (var i = lane % TEAM; i < WIDTH; i += TEAM) { mean += x[base + i]; }
    mean = team_fold(mean, lane, SUM) / f32(WIDTH);
  }
  var square = 0.0;
  for (var i = lane % TEAM; i < WIDTH; i += TEAM) {
    let d = x[base + i] - mean;
    square += d * d;
  }
  let factor = inverseSqrt(team_fold(square, lane, SUM) / f32(WIDTH) + EPS);
  for (var i = lane % TEAM; i < WIDTH; i += TEAM) {
    y[base + i] = (x[base + i] - mean) * factor * gain[i] + row_bias(i);
  }
}
