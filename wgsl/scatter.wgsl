// Rows of x into those of y that `indices` name: a thread an element.
override LENGTH: u32;
override INNER: u32;
override COUNT: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let element = (group.y * groups.x + group.x) * WORKGROUP + lane;
  if (element >= COUNT) { return; }
  let row = u32(clamp(indices[element / INNER], 0, i32(LENGTH) - 1));
  y[row * INNER + element % INNER] = x[element];
}
