// y = rows of x reduced, a team of TEAM lanes a row. Elements are f32 or, if INTEGER, i32: these a
// lane reduces alone.
override REDUCTION: u32;  // as fold's, or 4: the mean
override INTEGER: u32;

fn fold_integers(a: i32, b: i32) -> i32 {
  switch REDUCTION {
    case LARGER: { return max(a, b); }
    case SMALLER: { return min(a, b); }
    case PRODUCT: { return a * b; }
    default: { return a + b; }
  }
}

fn reduced_integers(base: u32) -> i32 {
  var total = bitcast<i32>(x[base]);
  for (var i = 1u; i < WIDTH; i++) { total = fold_integers(total, bitcast<i32>(x[base + i])); }
  if (REDUCTION == 4u) { total /= i32(WIDTH); }
  return total;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let row = row_of(group, groups, lane);
  if (INTEGER == 1u) {
    if (lane % TEAM == 0u) { y[row] = bitcast<u32>(reduced_integers(row * WIDTH)); }
    return;
  }
  let how = REDUCTION % 4u;
  var total = neutral(how);
  for (var i = lane % TEAM; i < WIDTH; i += TEAM) {
    total = fold(total, bitcast<f32>(x[row * WIDTH + i]), how);
  }
  total = team_fold(total, lane, how);
  if (lane % TEAM == 0u) { y[row] = bitcast<u32>(select(total, total / f32(WIDTH), REDUCTION == 4u)); }
}
