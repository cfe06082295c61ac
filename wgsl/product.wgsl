// y = SCALE * a @ b, batched, a and b with strides of their own: a thread makes TILE rows and
// columns.
override M: u32;
override N: u32;
override K: u32;
override BATCH: u32;  // of the inner axis in front
override SCALE: f32;
override A_AT: i32;
override A0: i32;
override A1: i32;
override A2: i32;
override A3: i32;
override B_AT: i32;
override B0: i32;
override B1: i32;
override B2: i32;
override B3: i32;

@compute @workgroup_size(SIDE, SIDE)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let row0 = id.y * TILE;
  let column0 = id.x * TILE;
  if (row0 >= M || column0 >= N) { return; }
  let outer = i32(id.z / BATCH);
  let inner = i32(id.z % BATCH);
  var left: array<i32, TILE>;
  var right: array<i32, TILE>;
  for (var i = 0u; i < TILE; i++) {
    left[i] = A_AT + outer * A0 + inner * A1 + i32(min(row0 + i, M - 1u)) * A2;
    right[i] = B_AT + outer * B0 + inner * B1 + i32(min(column0 + i, N - 1u)) * B3;
  }
  var sums: array<f32, TILE * TILE>;
  for (var k = 0; k < i32(K); k++) {
    var columns: array<f32, TILE>;
    for (var j = 0u; j < TILE; j++) { columns[j] = b[right[j] + k * B2]; }
    for (var i = 0u; i < TILE; i++) {
      let value = a[left[i] + k * A3];
      for (var j = 0u; j < TILE; j++) { sums[i * TILE + j] += value * columns[j]; }
    }
  }
  for (var i = 0u; i < TILE; i++) {
    for (var j = 0u; j < TILE; j++) {
      if (row0 + i < M && column0 + j < N) {
        y[(id.z * M + row0 + i) * N + column0 + j] = SCALE * sums[i * TILE + j];
      }
    }
  }
}
