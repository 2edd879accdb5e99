// SPDX-License-Identifier: Apache-2.0
// HLO text as a plain syntax tree: what is written, with its places, and nothing that it means.
// Names are without `%`; comments are gone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardproof::hlo {

// Where something stands in the text, both from 1; columns count bytes.
struct Place {
  std::int32_t line = 1, column = 1;
};

// An array's element type and sizes, or a tuple. A scalar has no sizes.
struct Shape {
  std::string type;  // "f32", "s32", "pred", ...; empty for a tuple
  std::vector<std::int64_t> sizes;
  std::vector<Shape> elements;
  bool tuple = false;
  // How the array lies in memory: its dimensions, from the one whose elements are side by side on.
  // Nothing where none is written, or one in tiles. It matters to bitcasts alone.
  std::optional<std::vector<std::int64_t>> minorToMajor = std::nullopt;

  friend bool operator==(const Shape& a, const Shape& b) {
    return a.type == b.type && a.sizes == b.sizes && a.elements == b.elements && a.tuple == b.tuple;
  }
};
std::string toText(const Shape& shape);

// How a tensor lies on the devices.
struct Sharding {
  enum class Kind : std::uint8_t {
    kReplicated,
    kManual,
    kUnreduced,  // each device has a summand
    kMaximal,
    kTiled,
    kTuple
  };
  Kind kind = Kind::kReplicated;
  std::int64_t device = 0;  // kMaximal
  // kTiled: tiles along each dimension of the tensor, then the dimensions along which it is
  // repeated; and which device holds which tile, row-major.
  std::vector<std::int64_t> tiles;
  std::size_t repeated = 0;  // how many of `tiles`, at the end, are repetitions
  // Some repetitions are manual or hold summands: what a device has is no tile of the tensor.
  bool noTiles = false;
  std::vector<std::int64_t> devices;
  std::vector<Sharding> elements;  // kTuple
};

// `name=value` after an instruction's operands: the text of the value, without comments.
struct Attribute {
  std::string name, value;
  Place place;  // of the value
};

struct Operand {
  std::string name;
  Place place;
};

struct Instruction {
  bool root = false;
  std::string name, opcode;
  Shape shape;
  std::vector<Operand> operands;
  std::string literal;  // what stands in the brackets of constant and parameter
  std::string written;  // of custom-call: the shape as it is written, with layouts
  std::vector<Attribute> attributes;
  Place place;         // of the name
  Place literalPlace;  // of the brackets' contents

  // Null where there is none.
  const Attribute* attribute(std::string_view name) const;
};

struct Computation {
  std::string name;
  bool entry = false;
  std::vector<Instruction> instructions;  // in the order of the text
  std::size_t root = 0;
  std::map<std::string, std::size_t, std::less<>> byName;
  Place place;
};

struct Module {
  std::string name;
  std::vector<Attribute> attributes;
  std::vector<Computation> computations;
  std::map<std::string, std::size_t, std::less<>> byName;
  std::size_t entry = 0;
  // Tables of metadata: file names, locations (file, line), frames (location).
  std::map<std::int64_t, std::string> fileNames;
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> fileLocations;
  std::map<std::int64_t, std::int64_t> stackFrames;

  const Attribute* attribute(std::string_view name) const;
};

// What an instruction's metadata says.
struct Metadata {
  std::string operation;  // op_name
  std::string source;     // "file.py:12", empty if not known
};

}  // namespace shardproof::hlo
