// The row of a team; teams beyond the last take it too, and write what is there already.
override ROWS: u32;
override WIDTH: u32;

fn row_of(group: vec3<u32>, groups: vec3<u32>, lane: u32) -> u32 {
  return min((group.y * groups.x + group.x) * (WORKGROUP / TEAM) + lane / TEAM, ROWS - 1u);
}
