# awk -v page=PATH -v url=URL -f package-links.awk CARRIED PAGE   prints a Markdown page, in which a
# relative link to a file that isn't in the list CARRIED has become one below URL. Paths are relative
# to the top of the package.

BEGIN { folder = page; if (!sub(/[^\/]*$/, "", folder)) folder = "" }

NR == FNR { sub(/^\.\//, ""); carried[$0]; next }

{
  rest = $0
  done = ""
  while (match(rest, /\]\([^)]*\)/)) {
    done = done substr(rest, 1, RSTART + 1) linked(substr(rest, RSTART + 2, RLENGTH - 3)) ")"
    rest = substr(rest, RSTART + RLENGTH)
  }
  print done rest
}

function linked(target,    path, anchor) {
  if (target ~ /^#/ || target ~ /^[a-z]+:/) return target
  anchor = path = target
  if (!sub(/^[^#]*/, "", anchor)) anchor = ""
  sub(/#.*/, "", path)
  path = from_top(folder path)
  return (path in carried) ? target : url "/" path anchor
}

# Resolves the dots in a path.
function from_top(path,    count, names, number, depth, kept, top) {
  count = split(path, names, "/")
  for (number = 1; number <= count; number++) {
    if (names[number] == "..") depth--
    else if (names[number] != "" && names[number] != ".") kept[++depth] = names[number]
  }
  top = kept[1]
  for (number = 2; number <= depth; number++) top = top "/" kept[number]
  return top
}
