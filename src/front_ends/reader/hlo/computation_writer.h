// SPDX-License-Identifier: Apache-2.0
// A computation that is written instruction by instruction, by what makes other programs of one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reader/hlo/syntax.h"

namespace shardproof::hlo {

inline Shape tupleOf(std::vector<Shape> elements) {
  Shape shape;
  shape.tuple = true;
  shape.elements = std::move(elements);
  return shape;
}

inline Shape arrayOf(const Shape& like, std::vector<std::int64_t> sizes) {
  Shape shape = like;
  shape.sizes = std::move(sizes);
  return shape;
}

class Writer {
 public:
  Writer(std::string name, bool entry, Place place) {
    made_.name = std::move(name);
    made_.entry = entry;
    made_.place = place;
  }

  // Returns its name, or another one where that is taken.
  std::string add(Instruction i) {
    if (made_.byName.contains(i.name)) {
      std::size_t k = 2;
      while (made_.byName.contains(i.name + "." + std::to_string(k))) ++k;
      i.name += "." + std::to_string(k);
    }
    made_.byName.emplace(i.name, made_.instructions.size());
    made_.instructions.push_back(std::move(i));
    return made_.instructions.back().name;
  }

  // With the metadata of `like`, of which it is a part.
  std::string add(const Instruction& like, const std::string& name, const std::string& opcode,
                  Shape shape, const std::vector<std::string>& operands,
                  std::vector<Attribute> attributes = {}, std::string literal = {}) {
    Instruction i;
    i.name = name;
    i.opcode = opcode;
    i.shape = std::move(shape);
    i.place = i.literalPlace = like.place;
    for (const std::string& operand : operands) i.operands.push_back({operand, like.place});
    i.attributes = std::move(attributes);
    for (Attribute& a : i.attributes) a.place = like.place;
    if (const Attribute* metadata = like.attribute("metadata")) i.attributes.push_back(*metadata);
    i.literal = std::move(literal);
    return add(std::move(i));
  }

  std::string element(const Instruction& like, const std::string& tuple, std::size_t k,
                      const Shape& shape) {
    return add(like, tuple + "@" + std::to_string(k), "get-tuple-element", shape, {tuple},
               {{"index", std::to_string(k), {}}});
  }

  // Elements low to high of one dimension.
  std::string slice(const Instruction& like, const std::string& name, const std::string& of,
                    const Shape& from, std::size_t dim, std::int64_t low, std::int64_t high) {
    std::string text;
    for (std::size_t d = 0; d < from.sizes.size(); ++d)
      text += (d == 0 ? "[" : ", [") + std::to_string(d == dim ? low : 0) + ":" +
              std::to_string(d == dim ? high : from.sizes[d]) + "]";
    std::vector<std::int64_t> sizes = from.sizes;
    sizes[dim] = high - low;
    return add(like, name, "slice", arrayOf(from, sizes), {of}, {{"slice", "{" + text + "}", {}}});
  }

  Computation finish(const std::string& root) {
    made_.root = made_.byName.at(root);
    made_.instructions[made_.root].root = true;
    return std::move(made_);
  }

 private:
  Computation made_;
};

}  // namespace shardproof::hlo
