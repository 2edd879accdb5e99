// SPDX-License-Identifier: Apache-2.0
// Attributes and literals that have a structure of their own.
#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "reader/hlo/parser.h"

namespace shardproof::hlo {
namespace {

constexpr std::int64_t kMostDevices = std::int64_t{1} << 20;

Cursor cursorOf(const Attribute& attribute, const std::string& file) {
  return Cursor(attribute.value, file, attribute.place);
}

void expectEnd(Cursor& c) {
  c.skipSpace();
  if (!c.atEnd()) c.expected("the end of the attribute");
}

// The product of some counts, of devices.
std::int64_t devicesOf(const std::vector<std::int64_t>& counts, const Cursor& c) {
  std::int64_t n = 1;
  for (const std::int64_t count : counts) {
    if (count < 1) c.fail("found the count " + std::to_string(count) + ", expected at least 1");
    if (n > kMostDevices / count) c.fail("found more than 2^20 devices");
    n *= count;
  }
  return n;
}

// 0, 1, 2, ... as an array of sizes `reshape`, its dimensions permuted, read row-major.
std::vector<std::int64_t> permutedIota(const std::vector<std::int64_t>& reshape,
                                       const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> strides(reshape.size(), 1);
  for (std::size_t d = reshape.size(); d-- > 1;) strides[d - 1] = strides[d] * reshape[d];
  std::vector<std::int64_t> values{0};
  for (const std::int64_t d : order) {
    std::vector<std::int64_t> next;
    next.reserve(values.size() * static_cast<std::size_t>(reshape[static_cast<std::size_t>(d)]));
    for (const std::int64_t v : values)
      for (std::int64_t i = 0; i < reshape[static_cast<std::size_t>(d)]; ++i)
        next.push_back(v + i * strides[static_cast<std::size_t>(d)]);
    values = std::move(next);
  }
  return values;
}

// "<=[4,2]T(1,0)" after the sizes: which device stands where, row-major.
std::vector<std::int64_t> iotaDevices(Cursor& c, std::int64_t count) {
  const std::vector<std::int64_t> reshape = c.integers('[', ']');
  if (devicesOf(reshape, c) != count)
    c.fail("the sizes of both lists have different products: " + std::to_string(count) + " and " +
           std::to_string(devicesOf(reshape, c)));
  std::vector<std::int64_t> order(reshape.size());
  std::iota(order.begin(), order.end(), 0);
  if (c.tryTake("T")) {
    const std::vector<std::int64_t> permutation = c.integers('(', ')');
    std::vector<std::int64_t> sorted = permutation;
    std::sort(sorted.begin(), sorted.end());
    if (sorted != order) c.fail("found no permutation after T");
    order = permutation;
  }
  return permutedIota(reshape, order);
}

void checkDevices(const std::vector<std::int64_t>& devices, const Cursor& c) {
  std::vector<std::int64_t> sorted = devices;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] != static_cast<std::int64_t>(i))
      c.fail("found a list of devices in which one is missing, twice or unknown");
}

Sharding shardingAt(Cursor& c, bool inTuple) {
  c.take("{");
  c.skipSpace();
  Sharding sharding;
  if (c.peek() == '{' || (c.peek() == '}' && !inTuple)) {
    if (inTuple) c.fail("found a tuple of shardings in a tuple");
    sharding.kind = Sharding::Kind::kTuple;
    if (c.tryTake("}")) return sharding;
    do sharding.elements.push_back(shardingAt(c, true));
    while (c.tryTake(","));
    c.take("}");
    return sharding;
  }
  if (c.tryTake("replicated")) {
    sharding.kind = Sharding::Kind::kReplicated;
  } else if (c.tryTake("manual")) {
    sharding.kind = Sharding::Kind::kManual;
  } else if (c.tryTake("unreduced")) {
    sharding.kind = Sharding::Kind::kUnreduced;
  } else if (c.tryTake("maximal")) {
    sharding.kind = Sharding::Kind::kMaximal;
    c.take("device=");
    sharding.device = c.integer("a device");
  } else if (c.tryTake("devices=")) {
    sharding.kind = Sharding::Kind::kTiled;
    sharding.tiles = c.integers('[', ']');
    const std::int64_t count = devicesOf(sharding.tiles, c);
    if (c.tryTake("<=")) {
      sharding.devices = iotaDevices(c, count);
    } else {
      do sharding.devices.push_back(c.integer("a device"));
      while (c.tryTake(","));
      if (static_cast<std::int64_t>(sharding.devices.size()) != count)
        c.fail("found " + std::to_string(sharding.devices.size()) + " devices, expected " +
               std::to_string(count));
    }
    checkDevices(sharding.devices, c);
    if (c.tryTake("last_tile_dim_replicate")) {
      sharding.repeated = 1;
    } else if (c.tryTake("last_tile_dims=")) {
      c.take("{");
      do {
        const std::string kind = c.identifier("replicated, manual or unreduced");
        if (kind == "manual" || kind == "unreduced") sharding.noTiles = true;
        else if (kind != "replicated")
          c.fail("found " + kind + ", expected replicated, manual or unreduced");
        ++sharding.repeated;
      } while (c.tryTake(","));
      c.take("}");
    }
    if (sharding.repeated > sharding.tiles.size())
      c.fail("found more repeated dimensions than there are");
  } else {
    c.expected(
        "a sharding: {replicated}, {manual}, {unreduced}, {maximal device=N} or "
        "{devices=[...]...}");
  }
  while (!c.tryTake("}")) {
    c.skipSpace();
    if (c.looksAt("metadata=")) {
      c.take("metadata=");
      std::size_t depth = 0;
      do {
        if (c.atEnd()) c.expected("'}'");
        if (c.peek() == '"') {
          c.quoted();
          continue;
        }
        if (c.peek() == '{') ++depth;
        if (c.peek() == '}') --depth;
        c.advance();
      } while (depth > 0);
    } else {
      c.expected("'}' of a sharding");
    }
  }
  return sharding;
}

// Of an axis of 8, (2)2 is the middle one of the axes of 2, 2 and 2 that it is row-major.
struct PartOfAxis {
  std::size_t axis = 0;
  std::int64_t before = 1, size = 1;  // how many are outside of it, and its own size
  Place place;
};

// 'a' or 'a':(2)2.
PartOfAxis partOfAxis(Cursor& c, const std::vector<std::string>& names,
                      const std::vector<std::int64_t>& sizes) {
  PartOfAxis part;
  part.place = c.place();
  const std::string name = c.quoted();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    c.failAt(part.place, "found '" + name + "', expected an axis of the mesh");
  part.axis = static_cast<std::size_t>(found - names.begin());
  const std::int64_t whole = part.size = sizes[part.axis];
  if (!c.tryTake(":")) return part;
  c.take("(");
  part.before = c.integer("how many parts are outside of this one");
  c.take(")");
  part.size = c.integer("the size of the part");
  if (part.before < 1 || part.size < 1 || part.before > whole || part.size > whole ||
      whole % (part.before * part.size) != 0)
    c.failAt(part.place, "found a part of axis '" + name + "' that does not divide its size " +
                             std::to_string(whole));
  return part;
}

// mesh['a'=4,'b'=2], device_ids=([8]) {'a'}: one group for each place on the axes not listed.
std::vector<std::vector<std::int64_t>> meshGroups(Cursor& c) {
  c.take("mesh");
  c.take("[");
  std::vector<std::string> names;
  std::vector<std::int64_t> sizes;
  do {
    names.push_back(c.quoted());
    c.take("=");
    sizes.push_back(c.integer("the size of an axis"));
  } while (c.tryTake(","));
  c.take("]");
  const std::int64_t count = devicesOf(sizes, c);
  std::vector<std::int64_t> devices(static_cast<std::size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  if (c.tryTake(",")) {
    c.take("device_ids=");
    c.take("(");
    c.skipSpace();
    if (c.peek() == '[') {
      devices = iotaDevices(c, count);
    } else {
      devices.clear();
      do devices.push_back(c.integer("a device"));
      while (c.tryTake(","));
      if (static_cast<std::int64_t>(devices.size()) != count)
        c.fail("found " + std::to_string(devices.size()) + " devices, expected " +
               std::to_string(count));
    }
    c.take(")");
    checkDevices(devices, c);
  }
  std::vector<PartOfAxis> listed;
  c.take("{");
  do listed.push_back(partOfAxis(c, names, sizes));
  while (c.tryTake(","));
  c.take("}");
  // The mesh with each axis as several: its listed parts, and what is between them.
  std::vector<std::int64_t> reshaped, inside(listed.size()), outside;
  for (std::size_t a = 0; a < names.size(); ++a) {
    std::vector<std::size_t> own;  // of `listed`, from the outermost
    for (std::size_t k = 0; k < listed.size(); ++k)
      if (listed[k].axis == a) own.push_back(k);
    std::sort(own.begin(), own.end(),
              [&](std::size_t k, std::size_t l) { return listed[k].before < listed[l].before; });
    std::int64_t before = 1;
    const auto rest = [&](std::int64_t upTo) {
      if (upTo % before != 0)
        c.failAt(listed[own.back()].place, "parts of axis '" + names[a] + "' overlap");
      outside.push_back(static_cast<std::int64_t>(reshaped.size()));
      reshaped.push_back(upTo / before);
    };
    for (const std::size_t k : own) {
      rest(listed[k].before);
      inside[k] = static_cast<std::int64_t>(reshaped.size());
      reshaped.push_back(listed[k].size);
      before = listed[k].before * listed[k].size;
    }
    rest(sizes[a]);
  }
  std::int64_t size = 1;
  for (const PartOfAxis& part : listed) size *= part.size;
  std::vector<std::int64_t> order = outside;
  order.insert(order.end(), inside.begin(), inside.end());
  const std::vector<std::int64_t> places = permutedIota(reshaped, order);
  std::vector<std::vector<std::int64_t>> groups;
  for (std::size_t i = 0; i < places.size(); i += static_cast<std::size_t>(size)) {
    groups.emplace_back();
    for (std::size_t k = 0; k < static_cast<std::size_t>(size); ++k)
      groups.back().push_back(devices[static_cast<std::size_t>(places[i + k])]);
  }
  return groups;
}

std::vector<std::vector<std::int64_t>> listsAt(Cursor& c) {
  std::vector<std::vector<std::int64_t>> lists;
  c.take("{");
  if (c.tryTake("}")) return lists;
  do lists.push_back(c.integers('{', '}'));
  while (c.tryTake(","));
  c.take("}");
  return lists;
}

}  // namespace

Sharding parseSharding(const Attribute& attribute, const std::string& file) {
  Cursor c = cursorOf(attribute, file);
  Sharding sharding = shardingAt(c, false);
  expectEnd(c);
  return sharding;
}

std::vector<std::vector<std::int64_t>> parseGroups(const Attribute& attribute,
                                                   const std::string& file, std::int64_t devices) {
  Cursor c = cursorOf(attribute, file);
  std::vector<std::vector<std::int64_t>> groups;
  c.skipSpace();
  if (c.looksAt("mesh")) {
    groups = meshGroups(c);
  } else if (c.peek() == '[') {
    const std::vector<std::int64_t> sizes = c.integers('[', ']');
    if (sizes.size() != 2) c.fail("expected two sizes: how many groups, of how many devices");
    const std::int64_t count = devicesOf(sizes, c);
    c.take("<=");
    const std::vector<std::int64_t> order = iotaDevices(c, count);
    for (std::int64_t g = 0; g < sizes[0]; ++g)
      groups.emplace_back(order.begin() + g * sizes[1], order.begin() + (g + 1) * sizes[1]);
  } else {
    groups = listsAt(c);
  }
  expectEnd(c);
  if (groups.empty() || (groups.size() == 1 && groups[0].empty())) {
    groups.assign(1, std::vector<std::int64_t>(static_cast<std::size_t>(devices)));
    std::iota(groups[0].begin(), groups[0].end(), 0);
  }
  std::vector<bool> seen(static_cast<std::size_t>(devices), false);
  for (const auto& group : groups)
    for (const std::int64_t d : group) {
      if (d < 0 || d >= devices)
        c.failAt(attribute.place, "found device " + std::to_string(d) + ", expected one of " +
                                      std::to_string(devices));
      if (seen[static_cast<std::size_t>(d)])
        c.failAt(attribute.place, "device " + std::to_string(d) + " stands in the groups twice");
      seen[static_cast<std::size_t>(d)] = true;
    }
  return groups;
}

std::vector<std::vector<std::int64_t>> parseLists(const Attribute& attribute,
                                                  const std::string& file) {
  Cursor c = cursorOf(attribute, file);
  auto lists = listsAt(c);
  expectEnd(c);
  return lists;
}

std::vector<std::int64_t> parseIntegers(const Attribute& attribute, const std::string& file) {
  Cursor c = cursorOf(attribute, file);
  auto list = c.integers('{', '}');
  expectEnd(c);
  return list;
}

std::int64_t parseInteger(const Attribute& attribute, const std::string& file) {
  Cursor c = cursorOf(attribute, file);
  const std::int64_t value = c.integer("an integer");
  expectEnd(c);
  return value;
}

Metadata parseMetadata(const Module& module, const Instruction& instruction,
                       const std::string& file) {
  Metadata metadata;
  const Attribute* attribute = instruction.attribute("metadata");
  if (attribute == nullptr) return metadata;
  Cursor c = cursorOf(*attribute, file);
  c.take("{");
  std::string source;
  std::int64_t line = 0, frame = 0;
  while (!c.tryTake("}")) {
    const std::string field = c.identifier("a field of the metadata");
    c.take("=");
    c.skipSpace();
    if (c.peek() == '"') {
      std::string text = c.quoted();
      if (field == "op_name") metadata.operation = std::move(text);
      else if (field == "source_file") source = std::move(text);
    } else if (c.peek() == '{') {
      std::size_t depth = 0;
      do {
        if (c.atEnd()) c.expected("'}'");
        if (c.peek() == '{') ++depth;
        if (c.peek() == '}') --depth;
        c.advance();
      } while (depth > 0);
    } else if ((c.peek() >= '0' && c.peek() <= '9') || c.peek() == '-') {
      const std::int64_t value = c.integer("an integer");
      if (field == "source_line") line = value;
      else if (field == "stack_frame_id") frame = value;
    } else {
      c.identifier("a value");
    }
    c.tryTake(",");
  }
  if (const auto f = module.stackFrames.find(frame); f != module.stackFrames.end())
    if (const auto l = module.fileLocations.find(f->second); l != module.fileLocations.end())
      if (const auto n = module.fileNames.find(l->second.first); n != module.fileNames.end()) {
        source = n->second;
        line = l->second.second;
      }
  if (!source.empty()) metadata.source = source + ":" + std::to_string(line);
  return metadata;
}

std::vector<std::string> parseLiteral(const Instruction& instruction, const std::string& file) {
  Cursor c(instruction.literal, file, instruction.literalPlace);
  if (instruction.shape.tuple)
    c.fail("found a literal of shape " + toText(instruction.shape) + ", expected an array");
  const std::vector<std::int64_t>& sizes = instruction.shape.sizes;
  const std::int64_t count = elementsOf(instruction.shape, file, instruction.place);
  std::vector<std::string> values;
  // How many entries have been read on each open level.
  std::vector<std::int64_t> read;
  const auto entry = [&] {
    if (!read.empty() && ++read.back() > sizes[read.size() - 1])
      c.fail("found more than " + std::to_string(sizes[read.size() - 1]) +
             " entries in a literal of shape " + toText(instruction.shape));
  };
  for (c.skipSpace(); !c.atEnd(); c.skipSpace()) {
    if (c.tryTake("{")) {
      if (c.tryTake("..."))
        c.fail("the literal's elements were left out: dump with xla_dump_large_constants");
      entry();
      if (read.size() == sizes.size())
        c.fail("found '{', expected a literal of shape " + toText(instruction.shape));
      read.push_back(0);
    } else if (c.tryTake("}")) {
      if (read.empty()) c.fail("found '}' that nothing opens");
      if (read.back() != sizes[read.size() - 1])
        c.fail("found " + std::to_string(read.back()) + " entries, expected " +
               std::to_string(sizes[read.size() - 1]));
      read.pop_back();
      c.tryTake(",");
    } else {
      if (read.size() != sizes.size() || c.peek() == '(')
        c.expected("a literal of shape " + toText(instruction.shape));
      entry();
      const std::size_t begin = c.offset();
      while (!c.atEnd() && c.peek() != ',' && c.peek() != '}' && c.peek() != ' ' &&
             c.peek() != '\n')
        c.advance();
      std::string value(c.since(begin));
      if (value.starts_with("...") || value.empty())
        c.fail("the literal's elements were left out: dump with xla_dump_large_constants");
      values.push_back(std::move(value));
      c.tryTake(",");
    }
    if (static_cast<std::int64_t>(values.size()) > count) c.fail("found too many elements");
  }
  if (!read.empty() || static_cast<std::int64_t>(values.size()) != count)
    c.fail("found " + std::to_string(values.size()) + " elements, expected " +
           std::to_string(count));
  return values;
}

}  // namespace shardproof::hlo
