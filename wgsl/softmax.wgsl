// y = exp(x - max) / sum(exp(x - max)) by rows, or its logarithm; a team of TEAM lanes a row.
override LOG: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let base = row_of(group, groups, lane) * WIDTH;
  var largest = neutral(LARGER);
  for (var i = lane % TEAM; i < WIDTH; i += TEAM) { largest = max(largest, x[base + i]); }
  largest = team_fold(largest, lane, LARGER);
  var total = 0.0;
  for (var i = lane % TEAM; i < WIDTH; i += TEAM) { total += exp(x[base + i] - largest); }
  total = team_fold(total, lane, SUM);
  for (var i = lane % TEAM; i < WIDTH; i += TEAM) {
    let shifted = x[base + i] - largest;
    if (LOG == 1u) { y[base + i] = shifted - log(total); } else { y[base + i] = exp(shifted) / total; }
  }
}
