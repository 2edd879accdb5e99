// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/parser.h"

#include <algorithm>
#include <utility>

namespace shardproof::hlo {
namespace {

constexpr int kMostDepth = 64;  // of tuples in tuples, brackets in brackets

std::string arrayText(const Shape& shape) {
  std::string text = shape.type + "[";
  for (std::size_t i = 0; i < shape.sizes.size(); ++i)
    text += (i == 0 ? "" : ",") + std::to_string(shape.sizes[i]);
  return text + "]";
}

// A bracket that begins here, to the one that ends it.
void skipBracketed(Cursor& c) {
  std::vector<char> closing;
  const Place begin = c.place();
  do {
    const char ch = c.peek();
    if (c.atEnd()) c.failAt(begin, "the bracket that begins here has no end");
    if (ch == '"' || ch == '\'') {
      c.quoted();
      continue;
    }
    if (ch == '/' && c.peek(1) == '*') {
      c.skipSpace();
      continue;
    }
    if (ch == '(') closing.push_back(')');
    else if (ch == '[') closing.push_back(']');
    else if (ch == '{') closing.push_back('}');
    else if (ch == ')' || ch == ']' || ch == '}') {
      if (closing.back() != ch) c.expected(std::string("'") + closing.back() + "'");
      closing.pop_back();
    }
    if (closing.size() > kMostDepth)
      c.fail("found brackets nested more than " + std::to_string(kMostDepth) + " deep");
    c.advance();
  } while (!closing.empty());
}

// "{1,0}", also with properties that move nothing: "{1,0:S(1)}". Nothing for tiles,
// "{1,0:T(8,128)}", and for what is no layout.
std::optional<std::vector<std::int64_t>> layoutAt(Cursor& c, std::size_t dimensions) {
  if (c.peek() != '{') return std::nullopt;
  Cursor inside = c;
  skipBracketed(c);
  std::vector<std::int64_t> order;
  std::vector<bool> seen(dimensions, false);
  inside.take("{");
  while (order.size() < dimensions) {
    inside.skipSpace();
    if ((!order.empty() && !inside.tryTake(",")) || inside.peek() < '0' || inside.peek() > '9')
      return std::nullopt;
    const std::int64_t d = inside.integer("a dimension");
    if (d >= static_cast<std::int64_t>(dimensions) || seen[static_cast<std::size_t>(d)])
      return std::nullopt;
    seen[static_cast<std::size_t>(d)] = true;
    order.push_back(d);
  }
  const bool isPlain = inside.tryTake("}") || inside.tryTake(":S(1)}") || inside.tryTake(":S(2)}");
  return isPlain ? std::optional(std::move(order)) : std::nullopt;
}

Shape shapeAt(Cursor& c, int depth) {
  if (depth > kMostDepth)
    c.fail("found tuples nested more than " + std::to_string(kMostDepth) + " deep");
  c.skipSpace();
  Shape shape;
  if (c.tryTake("(")) {
    shape.tuple = true;
    if (c.tryTake(")")) return shape;
    do shape.elements.push_back(shapeAt(c, depth + 1));
    while (c.tryTake(","));
    c.take(")");
    return shape;
  }
  const Place place = c.place();
  shape.type = c.identifier("a shape, such as f32[2,3]");
  if (c.peek() != '[') c.expected("'[' of a shape");
  c.take("[");
  if (!c.tryTake("]")) {
    do {
      c.skipSpace();
      if (c.looksAt("<=") || c.peek() == '?')
        c.fail("found a dynamic dimension, expected a size: shapes must be static");
      const Place here = c.place();
      shape.sizes.push_back(c.integer("a size"));
      if (shape.sizes.back() < 0) c.failAt(here, "found a negative size");
    } while (c.tryTake(","));
    c.take("]");
  }
  shape.minorToMajor = layoutAt(c, shape.sizes.size());
  elementsOf(shape, c.file(), place);
  return shape;
}

// "mesh['a'=4,'b'=2], device_ids=([8]) {'a'}": commas and blanks that do not end it.
void skipMeshGroups(Cursor& c) {
  while (c.peek() != '[' && !c.atEnd()) c.advance();
  skipBracketed(c);
  c.skipBlanks();
  if (c.peek() == ',') {
    c.advance();
    c.skipBlanks();
    if (!c.looksAt("device_ids=")) c.expected("device_ids=(...)");
    c.take("device_ids=");
    while (c.peek() != '(' && c.peek() != '[' && c.peek() != '\n' && !c.atEnd()) c.advance();
    skipBracketed(c);
    c.skipBlanks();
  }
  if (c.peek() != '{') c.expected("'{' and names of axes");
  skipBracketed(c);
}

// A value, up to the comma or the end of the line that ends it.
std::string valueAt(Cursor& c) {
  const std::size_t begin = c.offset();
  if (c.looksAt("mesh[")) {
    skipMeshGroups(c);
    return std::string(c.since(begin));
  }
  while (!c.atEnd() && c.peek() != ',' && c.peek() != '\n') {
    const char ch = c.peek();
    if (ch == '{' || ch == '[' || ch == '(') skipBracketed(c);
    else if (ch == '"' || ch == '\'') c.quoted();
    else if (ch == '}' || ch == ']' || ch == ')') c.expected("the end of an attribute");
    else c.advance();
  }
  std::string value(c.since(begin));
  while (!value.empty() && (value.back() == ' ' || value.back() == '\r')) value.pop_back();
  return value;
}

// ", name=value, name=value" to the end of the line.
std::vector<Attribute> attributesAt(Cursor& c) {
  std::vector<Attribute> list;
  c.skipBlanks();
  while (c.peek() == ',') {
    c.advance();
    c.skipBlanks();
    Attribute attribute;
    const Place place = c.place();
    attribute.name = c.identifier("the name of an attribute");
    for (const Attribute& a : list)
      if (a.name == attribute.name)
        c.failAt(place, "attribute '" + attribute.name + "' is given twice");
    c.skipBlanks();
    if (c.peek() == '=') {
      c.advance();
      c.skipBlanks();
      attribute.place = c.place();
      attribute.value = valueAt(c);
    }
    list.push_back(std::move(attribute));
    c.skipBlanks();
  }
  if (!c.atEnd() && c.peek() != '\n') c.expected("',' or the end of the line");
  return list;
}

// "(a, %b, f32[2]{0} %c)": the last word of each is the name.
std::vector<Operand> operandsAt(Cursor& c) {
  std::vector<Operand> list;
  c.take("(");
  if (c.tryTake(")")) return list;
  do {
    c.skipSpace();
    // Old texts give each operand's shape before its name.
    Cursor ahead = c;
    std::size_t words = 0;
    bool shaped = ahead.peek() == '(';
    if (!shaped && ahead.peek() != '%') {
      ahead.name("an operand");
      ++words;
      shaped = ahead.peek() == '[';
    }
    if (shaped) shapeAt(c, 0);
    c.skipSpace();
    Operand operand;
    operand.place = c.place();
    operand.name = c.name("the name of an operand");
    list.push_back(std::move(operand));
  } while (c.tryTake(","));
  c.take(")");
  return list;
}

bool hasLiteral(const std::string& opcode) { return opcode == "constant" || opcode == "parameter"; }

Instruction instructionAt(Cursor& c) {
  Instruction i;
  c.skipSpace();
  if (c.looksAt("ROOT ")) {
    c.take("ROOT");
    i.root = true;
    c.skipSpace();
  }
  i.place = c.place();
  i.name = c.name("the name of an instruction");
  c.take("=");
  const std::size_t shapeBegin = c.offset();
  i.shape = shapeAt(c, 0);
  std::string written(c.since(shapeBegin));
  i.opcode = c.identifier("an opcode");
  if (i.opcode == "custom-call") i.written = std::move(written);
  if (hasLiteral(i.opcode)) {
    c.skipSpace();
    if (c.peek() != '(') c.expected("'('");
    const std::size_t begin = c.offset() + 1;
    i.literalPlace = c.place();
    ++i.literalPlace.column;
    skipBracketed(c);
    i.literal = std::string(c.since(begin));
    i.literal.pop_back();
  } else {
    i.operands = operandsAt(c);
  }
  i.attributes = attributesAt(c);
  return i;
}

Computation computationAt(Cursor& c) {
  Computation computation;
  c.skipSpace();
  if (c.looksAt("ENTRY ") || c.looksAt("ENTRY\t")) {
    c.take("ENTRY");
    computation.entry = true;
  }
  c.skipSpace();
  computation.place = c.place();
  computation.name = c.name("a computation: its name");
  c.skipSpace();
  if (c.peek() == '(') {
    skipBracketed(c);
    c.take("->");
    shapeAt(c, 0);
  }
  c.take("{");
  bool rooted = false;
  while (!c.tryTake("}")) {
    if (c.atEnd()) c.failAt(computation.place, "the computation that begins here has no end");
    Instruction i = instructionAt(c);
    for (const Operand& operand : i.operands)
      if (!computation.byName.contains(operand.name))
        c.failAt(operand.place, "found operand '" + operand.name +
                                    "', expected an instruction that stands before in '" +
                                    computation.name + "'");
    if (i.root && std::exchange(rooted, true)) c.failAt(i.place, "found a second ROOT");
    if (i.root) computation.root = computation.instructions.size();
    if (!computation.byName.emplace(i.name, computation.instructions.size()).second)
      c.failAt(i.place, "instruction '" + i.name + "' is defined twice");
    computation.instructions.push_back(std::move(i));
  }
  if (computation.instructions.empty())
    c.failAt(computation.place, "computation '" + computation.name + "' has no instruction");
  if (!rooted) computation.root = computation.instructions.size() - 1;
  attributesAt(c);  // execution_thread and such
  return computation;
}

// "{key=1 key=2}" of a line of the metadata's tables.
std::map<std::string, std::int64_t> fieldsAt(Cursor& c) {
  std::map<std::string, std::int64_t> fields;
  c.take("{");
  while (!c.tryTake("}")) {
    std::string name = c.identifier("a field");
    c.take("=");
    fields[std::move(name)] = c.integer("an integer");
    c.tryTake(",");
  }
  return fields;
}

// FileNames, FunctionNames, FileLocations, StackFrames: numbered lines.
bool tableAt(Cursor& c, Module& module) {
  const auto rows = [&](const char* title, auto&& row) {
    if (!c.looksAt(title)) return false;
    c.take(title);
    c.skipSpace();
    while (c.peek() >= '0' && c.peek() <= '9') {
      row(c.integer("a number"));
      c.skipSpace();
    }
    return true;
  };
  return rows("FileNames", [&](std::int64_t n) { module.fileNames[n] = c.quoted(); }) ||
         rows("FunctionNames", [&](std::int64_t) { c.quoted(); }) ||
         rows("FileLocations",
              [&](std::int64_t n) {
                auto fields = fieldsAt(c);
                module.fileLocations[n] = {fields["file_name_id"], fields["line"]};
              }) ||
         rows("StackFrames",
              [&](std::int64_t n) { module.stackFrames[n] = fieldsAt(c)["file_location_id"]; });
}

}  // namespace

std::string toText(const Shape& shape) {
  if (!shape.tuple) return arrayText(shape);
  std::string text = "(";
  for (std::size_t i = 0; i < shape.elements.size(); ++i)
    text += (i == 0 ? "" : ", ") + toText(shape.elements[i]);
  return text + ")";
}

const Attribute* Instruction::attribute(std::string_view wanted) const {
  for (const Attribute& a : attributes)
    if (a.name == wanted) return &a;
  return nullptr;
}

const Attribute* Module::attribute(std::string_view wanted) const {
  for (const Attribute& a : attributes)
    if (a.name == wanted) return &a;
  return nullptr;
}

std::int64_t elementsOf(const Shape& shape, const std::string& file, Place place) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  std::int64_t n = 1;
  for (const std::int64_t size : shape.sizes) {
    if (size != 0 && n > kMost / size)
      failAt(file, place, "found a shape of more than 2^62 elements");
    n *= size;
  }
  return n;
}

bool looksLikeHlo(std::string_view text) {
  // Comments may stand before it, as in texts that were cut out of a log.
  for (;;) {
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return false;
    text.remove_prefix(begin);
    if (text.starts_with("//")) {
      const std::size_t end = text.find('\n');
      if (end == std::string_view::npos) return false;
      text.remove_prefix(end);
    } else if (text.starts_with("/*")) {
      const std::size_t end = text.find("*/");
      if (end == std::string_view::npos) return false;
      text.remove_prefix(end + 2);
    } else {
      return text.starts_with("HloModule");
    }
  }
}

Module parse(std::string_view text, const std::string& file) {
  Cursor c(text, file);
  Module module;
  c.take("HloModule");
  module.name = c.name("the module's name");
  module.attributes = attributesAt(c);
  bool entry = false;
  for (c.skipSpace(); !c.atEnd(); c.skipSpace()) {
    if (tableAt(c, module)) continue;
    Computation computation = computationAt(c);
    if (computation.entry && std::exchange(entry, true))
      c.failAt(computation.place, "found a second ENTRY computation");
    if (computation.entry) module.entry = module.computations.size();
    if (!module.byName.emplace(computation.name, module.computations.size()).second)
      c.failAt(computation.place, "computation '" + computation.name + "' is defined twice");
    module.computations.push_back(std::move(computation));
  }
  if (!entry && module.computations.size() != 1)
    c.fail("found the end, expected an ENTRY computation");
  return module;
}

}  // namespace shardproof::hlo
