// SPDX-License-Identifier: Apache-2.0
// Each instruction of complex numbers becomes instructions of their parts: its definition, written
// out. Both programs are treated so, and nothing is simplified: a product with a zero part stays,
// as it has no value where the other factor has none.
//
// A Fourier transform is linear: it becomes products with the tables of cosines and sines that
// define it, one dimension after the other. The tables are computed in the program from counts, by
// one expression for each length, so they are the same on all devices and in both programs. What
// is proved then holds for every table in their place; the search for differences uses the true
// numbers (docs/jax.md, "What is proved").
#include "reader/hlo/complex.h"

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <numbers>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "reader/hlo/computation_writer.h"
#include "reader/hlo/dimensions.h"
#include "reader/hlo/parser.h"
#include "shardproof/error.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

using Sizes = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

constexpr std::int64_t kLongestTransform = 32768;  // products of two counts fit 32 bits

bool isComplexType(const std::string& type) { return type == "c64" || type == "c128"; }
bool isComplex(const Shape& shape) { return !shape.tuple && isComplexType(shape.type); }
std::string partType(const std::string& type) { return type == "c128" ? "f64" : "f32"; }

bool hasComplex(const Shape& shape) {
  return isComplex(shape) || std::any_of(shape.elements.begin(), shape.elements.end(), hasComplex);
}

Shape partShape(const Shape& shape) {
  Shape part = shape;
  part.type = partType(shape.type);
  return part;
}

Shape realShape(const Shape& shape) {
  if (isComplex(shape)) return tupleOf({partShape(shape), partShape(shape)});
  Shape made = shape;
  for (Shape& element : made.elements) element = realShape(element);
  return made;
}

// These hand on what they are given, or take it apart: tuples of parts as well.
bool passesOn(const std::string& opcode) {
  static const std::set<std::string, std::less<>> kPasses{
      "tuple",     "get-tuple-element",    "call",        "fusion",    "while",
      "parameter", "conditional",          "copy-start",  "copy-done", "async-start",
      "domain",    "opt-barrier",          "async-done",  "copy",      "async-update",
      "after-all", "optimization-barrier", "partition-id"};
  return kPasses.contains(opcode);
}

// These move elements, whatever these are. Other operands than complex ones are places.
bool moves(const std::string& opcode) {
  static const std::set<std::string, std::less<>> kMoves{
      "broadcast", "reshape",     "transpose",  "slice",
      "reverse",   "concatenate", "pad",        "dynamic-slice",
      "gather",    "bitcast",     "select",     "dynamic-update-slice",
      "negate",    "add",         "all-gather", "subtract",
      "convert",   "all-to-all",  "copy",       "collective-permute"};
  return kMoves.contains(opcode);
}

// A tuple's sharding is a list of its elements'.
Names elementsOfSharding(const std::string& text) {
  Names elements;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t k = 0; k < text.size(); ++k) {
    if (text[k] == '{' && ++depth == 2) begin = k;
    if (text[k] == '}' && depth-- == 2) elements.push_back(text.substr(begin, k + 1 - begin));
  }
  return elements;
}

// The real (0) or the imaginary (1) numbers of a literal: "(1, 2)" is a number.
std::string partOfLiteral(const Instruction& i, int part, const std::string& file) {
  std::string text;
  const std::string& literal = i.literal;
  for (std::size_t k = 0; k < literal.size(); ++k) {
    if (literal[k] != '(') {
      text += literal[k];
      continue;
    }
    const std::size_t comma = literal.find(',', k), end = literal.find(')', k);
    if (comma == std::string::npos || end == std::string::npos || comma > end)
      failAt(file, i.literalPlace, "found a complex number that is not (real, imaginary)");
    std::size_t begin = part == 0 ? k + 1 : comma + 1;
    while (literal[begin] == ' ') ++begin;
    text += literal.substr(begin, (part == 0 ? comma : end) - begin);
    k = end;
  }
  return text;
}

class Splitter {
 public:
  Splitter(Module module, const std::string& file) : module_(std::move(module)), file_(file) {}

  Module run() {
    Module made = module_;
    made.computations.clear();
    made.byName.clear();
    for (const Computation& c : module_.computations) {
      Computation split = splitComputation(c);
      if (split.entry) made.entry = made.computations.size();
      made.byName.emplace(split.name, made.computations.size());
      made.computations.push_back(std::move(split));
    }
    for (auto& [name, region] : regions_) {
      made.byName.emplace(name, made.computations.size());
      made.computations.push_back(std::move(region));
    }
    return made;
  }

 private:
  struct Parts {
    std::string real, imaginary;
    const std::string& operator[](int part) const { return part == 0 ? real : imaginary; }
  };

  [[noreturn]] void unsupported(const Instruction& i, const std::string& what) const {
    failAt(file_, i.place, "instruction '" + i.name + "', opcode '" + i.opcode + "': " + what);
  }

  const Instruction& original(const Operand& operand) const {
    return computation_->instructions[computation_->byName.at(operand.name)];
  }
  const Shape& shapeOf(const Instruction& i, std::size_t k) const {
    if (k >= i.operands.size()) unsupported(i, "fewer operands than expected");
    return original(i.operands[k]).shape;
  }

  Computation splitComputation(const Computation& c) {
    computation_ = &c;
    parts_.clear();
    Writer writer(c.name, c.entry, c.place);
    w_ = &writer;
    for (const Instruction& i : c.instructions) {
      const bool complex = hasComplex(i.shape) ||
                           std::any_of(i.operands.begin(), i.operands.end(), [&](const Operand& o) {
                             return hasComplex(original(o).shape);
                           });
      checked(i, [&] {
        if (c.entry && i.opcode == "parameter") parameter(i);
        else if (complex || i.opcode == "fft") split(i);
        else add(i);
      });
    }
    const Instruction& root = c.instructions[c.root];
    std::string last = root.name;
    if (c.entry && hasComplex(root.shape)) checked(root, [&] { last = results(root); });
    return writer.finish(last);
  }

  // What does not fit together in a way that nothing saw is an error with its place, too.
  template <class Work>
  void checked(const Instruction& i, const Work& work) const {
    try {
      work();
    } catch (const InputError&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      unsupported(i, "other operands or attributes than such an instruction has");
    }
  }

  std::string add(Instruction i) {
    i.root = false;
    return w_->add(std::move(i));
  }

  // An instruction of one part, with the name and the attributes of that of both.
  Instruction partOf(const Instruction& i, int part) const {
    static const char* const kSuffix[] = {"@re", "@im"};
    Instruction made = i;
    made.root = false;
    made.name += kSuffix[part];
    if (isComplex(i.shape)) made.shape = partShape(i.shape);
    // Parts are told apart where programs are compared by the names of operations.
    for (Attribute& a : made.attributes) {
      const std::size_t name =
          a.name == "metadata" ? a.value.find("op_name=\"") : std::string::npos;
      if (name == std::string::npos) continue;
      const std::size_t end = a.value.find('"', name + 9);
      if (end != std::string::npos) a.value.insert(end, part == 0 ? " real" : " imaginary");
    }
    return made;
  }

  Parts partsOf(const std::string& name) {
    if (const auto known = parts_.find(name); known != parts_.end()) return known->second;
    const Instruction& i = computation_->instructions[computation_->byName.at(name)];
    const Shape part = partShape(i.shape);
    Parts made{w_->element(i, name, 0, part), w_->element(i, name, 1, part)};
    parts_.emplace(name, made);
    return made;
  }
  Parts operand(const Instruction& i, std::size_t k) {
    if (!isComplex(shapeOf(i, k))) unsupported(i, "complex numbers together with others");
    return partsOf(i.operands[k].name);
  }

  void finish(const Instruction& i, const Parts& parts) {
    parts_.emplace(i.name, parts);
    w_->add(i, i.name, "tuple", realShape(i.shape), {parts.real, parts.imaginary});
  }

  void finishReal(const Instruction& i, const std::string& opcode, const Names& operands) {
    std::vector<Attribute> attributes;
    if (const Attribute* sharding = i.attribute("sharding")) attributes.push_back(*sharding);
    w_->add(i, i.name, opcode, i.shape, operands, std::move(attributes));
  }

  // --- parameters and results of the program ---
  void parameter(const Instruction& i) {
    Cursor c(i.literal, file_, i.literalPlace);
    const std::int64_t number = c.integer("the parameter's number");
    std::int64_t before = 0;
    for (const Instruction& other : computation_->instructions) {
      if (other.opcode != "parameter" || !isComplex(other.shape)) continue;
      Cursor o(other.literal, file_, other.literalPlace);
      if (o.integer("the parameter's number") < number) ++before;
    }
    if (!isComplex(i.shape)) {
      Instruction same = i;
      same.literal = std::to_string(number + before);
      add(std::move(same));
      return;
    }
    Parts parts;
    for (const int part : {0, 1}) {
      Instruction made = partOf(i, part);
      made.literal = std::to_string(number + before + part);
      (part == 0 ? parts.real : parts.imaginary) = w_->add(std::move(made));
    }
    finish(i, parts);
  }

  std::string results(const Instruction& root) {
    const bool many = root.shape.tuple;
    std::vector<Shape> elements = many ? root.shape.elements : std::vector<Shape>{root.shape};
    const Attribute* sharding = root.attribute("sharding");
    Names shardings;
    if (sharding != nullptr) {
      shardings = many ? elementsOfSharding(sharding->value) : Names{sharding->value};
      if (shardings.size() == 1) shardings.resize(elements.size(), shardings[0]);
      if (shardings.size() != elements.size())
        failAt(file_, sharding->place,
               "found a tuple of " + std::to_string(shardings.size()) + " shardings, expected " +
                   std::to_string(elements.size()));
    }
    Names names;
    std::vector<Shape> shapes;
    std::string text;
    for (std::size_t k = 0; k < elements.size(); ++k) {
      const bool complex = isComplex(elements[k]);
      const bool listed = many && root.opcode == "tuple";
      std::string name = listed ? root.operands[k].name
                         : many ? w_->element(root, root.name, k, realShape(elements[k]))
                                : root.name;
      Names own{name};
      if (complex && many && !listed) {
        const Shape part = partShape(elements[k]);
        own = {w_->element(root, name, 0, part), w_->element(root, name, 1, part)};
      } else if (complex) {
        const Parts parts = partsOf(name);
        own = {parts.real, parts.imaginary};
      }
      for (std::string& n : own) {
        names.push_back(std::move(n));
        shapes.push_back(complex ? partShape(elements[k]) : elements[k]);
        if (sharding != nullptr) text += (text.empty() ? "" : ", ") + shardings[k];
      }
    }
    std::vector<Attribute> attributes;
    if (sharding != nullptr) attributes.push_back({"sharding", "{" + text + "}", {}});
    return w_->add(root, root.name + "@parts", "tuple", tupleOf(shapes), names, attributes);
  }

  // --- instructions ---
  void split(const Instruction& i) {
    if (i.opcode == "fft") return fourier(i);
    static const std::set<std::string, std::less<>> kToReal{"real", "imag", "abs", "compare"};
    if (!hasComplex(i.shape) && !kToReal.contains(i.opcode) && !passesOn(i.opcode))
      unsupported(i, "of complex numbers it is not supported");
    if (passesOn(i.opcode) || isMark(i)) {
      Instruction same = i;
      if (isMark(i)) {
        same.opcode = "copy";
        same.attributes.clear();
      }
      std::erase_if(same.attributes, [](const Attribute& a) { return a.name == "sharding"; });
      same.shape = realShape(i.shape);
      add(std::move(same));
      return;
    }
    if (i.opcode == "constant") {
      finish(i, forBoth(i, [&](Instruction& part, int k) {
               part.literal = partOfLiteral(i, k, file_);
             }));
      return;
    }
    if (i.opcode == "convert" && !isComplex(shapeOf(i, 0))) {
      Instruction real = partOf(i, 0);
      const std::string name = w_->add(std::move(real));
      finish(i, {name, number(i, 0, partShape(i.shape))});
      return;
    }
    const bool meets = i.opcode == "all-reduce" || i.opcode == "reduce-scatter";
    if (meets || (i.opcode == "all-gather" && i.operands.size() > 1)) return several(i);
    if (i.opcode == "reduce" || i.opcode == "reduce-window" || i.opcode == "scatter")
      return combined(i);
    if (moves(i.opcode)) {
      if (i.shape.tuple) unsupported(i, "several operands of complex numbers");
      operand(i, i.opcode == "select" ? 1 : 0);
      finish(i, forBoth(i, [](Instruction&, int) {}));
      return;
    }
    arithmetic(i);
  }

  bool isMark(const Instruction& i) const {
    static const std::set<std::string, std::less<>> kMarks{
        "\"Sharding\"", "\"xla.sdy.FuncResultSharding\"", "\"xla.sdy.PropagationBarrier\""};
    const Attribute* target = i.attribute("custom_call_target");
    return i.opcode == "custom-call" && target != nullptr && kMarks.contains(target->value) &&
           i.operands.size() == 1 && shapeOf(i, 0) == i.shape;
  }

  // The same instruction on real and on imaginary parts.
  template <class Change>
  Parts forBoth(const Instruction& i, const Change& change) {
    Parts made;
    for (const int k : {0, 1}) {
      Instruction part = partOf(i, k);
      for (Operand& o : part.operands)
        if (isComplex(original(o).shape)) o.name = partsOf(o.name)[k];
      change(part, k);
      (k == 0 ? made.real : made.imaginary) = w_->add(std::move(part));
    }
    return made;
  }

  // A number everywhere.
  std::string number(const Instruction& i, double value, const Shape& shape,
                     const std::string& text = {}) {
    const std::string name = w_->add(i, i.name + "@number", "constant", {shape.type, {}, {}, false},
                                     {}, {}, text.empty() ? std::to_string(value) : text);
    if (shape.sizes.empty()) return name;
    return w_->add(i, i.name + "@numbers", "broadcast", shape, {name}, {{"dimensions", "{}", {}}});
  }
  std::string apply(const Instruction& i, const std::string& opcode, const Shape& shape,
                    const Names& operands, std::vector<Attribute> attributes = {}) {
    return w_->add(i, i.name + "@" + opcode, opcode, shape, operands, std::move(attributes));
  }

  // What `product` makes of two reals is bilinear.
  template <class Product>
  Parts bilinear(const Instruction& i, const Product& product) {
    const Parts a = operand(i, 0), b = operand(i, 1);
    const Shape shape = partShape(i.shape);
    const auto of = [&](int x, int y) { return product(a[x], b[y]); };
    return {apply(i, "subtract", shape, {of(0, 0), of(1, 1)}),
            apply(i, "add", shape, {of(0, 1), of(1, 0)})};
  }

  void arithmetic(const Instruction& i) {
    const std::string& op = i.opcode;
    const Shape part =
        partShape(isComplex(i.shape) ? i.shape : arrayOf(shapeOf(i, 0), i.shape.sizes));
    const auto two = [&](const std::string& opcode, const std::string& x, const std::string& y) {
      return apply(i, opcode, part, {x, y});
    };
    const auto one = [&](const std::string& opcode, const std::string& x) {
      return apply(i, opcode, part, {x});
    };
    const auto squares = [&](const Parts& z) {
      return two("add", two("multiply", z.real, z.real), two("multiply", z.imaginary, z.imaginary));
    };
    if (op == "complex")
      return finish(i, {one("copy", i.operands.at(0).name), one("copy", i.operands.at(1).name)});
    if (op == "real" || op == "imag" || op == "abs") {
      const Parts z = operand(i, 0);
      const std::string of = op == "real"   ? z.real
                             : op == "imag" ? z.imaginary
                                            : one("sqrt", squares(z));
      return finishReal(i, "copy", {of});
    }
    if (op == "multiply")
      return finish(i, bilinear(i, [&](const std::string& x, const std::string& y) {
                      return two("multiply", x, y);
                    }));
    if (op == "dot" || op == "convolution")
      return finish(i, bilinear(i, [&](const std::string& x, const std::string& y) {
                      Instruction product = partOf(i, 0);
                      product.name = i.name + "@product";
                      product.operands[0].name = x;
                      product.operands[1].name = y;
                      return w_->add(std::move(product));
                    }));
    if (op == "divide") {  // a conj(b) / |b|^2
      const Parts a = operand(i, 0), b = operand(i, 1);
      const std::string size = squares(b);
      const std::string real =
          two("add", two("multiply", a.real, b.real), two("multiply", a.imaginary, b.imaginary));
      const std::string imaginary = two("subtract", two("multiply", a.imaginary, b.real),
                                        two("multiply", a.real, b.imaginary));
      return finish(i, {two("divide", real, size), two("divide", imaginary, size)});
    }
    if (op == "exponential") {
      const Parts z = operand(i, 0);
      const std::string size = one("exponential", z.real);
      return finish(i, {two("multiply", size, one("cosine", z.imaginary)),
                        two("multiply", size, one("sine", z.imaginary))});
    }
    if (op == "log") {
      const Parts z = operand(i, 0);
      return finish(i, {two("multiply", one("log", squares(z)), number(i, 0.5, part)),
                        two("atan2", z.imaginary, z.real)});
    }
    if (op == "compare") return comparison(i);
    unsupported(i, "of complex numbers it is not supported");
  }

  void comparison(const Instruction& i) {
    const Attribute* direction = i.attribute("direction");
    const bool equal = direction != nullptr && direction->value == "EQ";
    if (!equal && (direction == nullptr || direction->value != "NE"))
      unsupported(i, "an order of complex numbers");
    const Parts a = operand(i, 0), b = operand(i, 1);
    const std::vector<Attribute> same{{"direction", direction->value, {}}};
    finishReal(i, equal ? "and" : "or",
               {apply(i, "compare", i.shape, {a.real, b.real}, same),
                apply(i, "compare", i.shape, {a.imaginary, b.imaginary}, same)});
  }

  // --- what combines elements by a computation ---
  // "add", or "" for one that returns its second parameter.
  std::string regionOf(const Instruction& i) const {
    const Attribute* a = i.attribute("to_apply");
    if (a != nullptr) {
      Cursor c(a->value, file_, a->place);
      if (const auto found = module_.byName.find(c.name("a computation"));
          found != module_.byName.end()) {
        const Computation& region = module_.computations[found->second];
        const Instruction& root = region.instructions[region.root];
        if (root.opcode == "parameter" && root.literal == "1" && i.opcode == "scatter") return "";
        const auto literalOf = [&](std::size_t k) -> std::string {
          const Instruction& from = region.instructions[region.byName.at(root.operands[k].name)];
          return from.opcode == "parameter" ? from.literal : "";
        };
        const bool multiplies = i.opcode == "reduce" && root.opcode == "multiply";
        if ((root.opcode == "add" || multiplies) && root.operands.size() == 2 &&
            ((literalOf(0) == "0" && literalOf(1) == "1") ||
             (literalOf(0) == "1" && literalOf(1) == "0")))
          return root.opcode;
      }
    }
    unsupported(i, "complex numbers are added or replaced only");
  }

  // The same of real numbers.
  std::string realRegion(const Instruction& i, const std::string& opcode, const std::string& type) {
    std::string name = "complex." + (opcode.empty() ? "second" : opcode) + "." + type;
    while (module_.byName.contains(name)) name += ".1";
    if (regions_.contains(name)) return name;
    const Shape scalar{type, {}, {}, false};
    Writer region(name, false, i.place);
    Instruction like;
    like.place = i.place;
    region.add(like, "first", "parameter", scalar, {}, {}, "0");
    region.add(like, "second", "parameter", scalar, {}, {}, "1");
    if (!opcode.empty()) region.add(like, "both", opcode, scalar, {"first", "second"});
    regions_.emplace(name, region.finish(opcode.empty() ? "second" : "both"));
    return name;
  }

  void setRegion(Instruction& part, const std::string& name) const {
    for (Attribute& a : part.attributes)
      if (a.name == "to_apply") a.value = "%" + name;
  }

  void combined(const Instruction& i) {
    const std::size_t expected = i.opcode == "scatter" ? 3 : 2;
    operand(i, 0);
    operand(i, expected - 1);
    if (i.operands.size() != expected || i.shape.tuple)
      unsupported(i, "several operands of complex numbers");
    const std::string combines = regionOf(i);
    if (combines == "multiply") return product(i);
    const std::string region = realRegion(i, combines, partType(i.shape.type));
    finish(i, forBoth(i, [&](Instruction& part, int) { setRegion(part, region); }));
  }

  // Of a few numbers: the lengths by which a transform is divided.
  void product(const Instruction& i) {
    constexpr std::int64_t kMostFactors = 64;
    const Shape& given = shapeOf(i, 0);
    if (given.sizes.size() != 1 || given.sizes[0] > kMostFactors || !i.shape.sizes.empty())
      unsupported(i, "a product of more than a few complex numbers in a row");
    const Shape one = partShape(i.shape);
    const Parts x = operand(i, 0);
    Parts made = operand(i, 1);
    for (std::int64_t k = 0; k < given.sizes[0]; ++k) {
      const auto factor = [&](int part) {
        const std::string piece =
            w_->slice(i, i.name + "@factor", x[part], partShape(given), 0, k, k + 1);
        return apply(i, "reshape", one, {piece});
      };
      made = multiplied(i, made, {factor(0), factor(1)}, one);
    }
    finish(i, made);
  }

  Parts multiplied(const Instruction& i, const Parts& a, const Parts& b, const Shape& shape) {
    const auto of = [&](int x, int y) { return apply(i, "multiply", shape, {a[x], b[y]}); };
    return {apply(i, "subtract", shape, {of(0, 0), of(1, 1)}),
            apply(i, "add", shape, {of(0, 1), of(1, 0)})};
  }

  // Communication of several arrays: each for itself.
  void several(const Instruction& i) {
    const bool reduces = i.opcode != "all-gather";
    const std::string region = reduces ? regionOf(i) : "";
    Names elements;
    for (std::size_t k = 0; k < i.operands.size(); ++k) {
      Instruction one = i;
      one.operands = {i.operands[k]};
      if (i.shape.tuple) {
        one.shape = i.shape.elements.at(k);
        one.name += "@" + std::to_string(k);
      }
      const std::string name = one.name;
      if (isComplex(one.shape)) {
        finish(one, forBoth(one, [&](Instruction& part, int) {
                 if (reduces) setRegion(part, realRegion(i, region, part.shape.type));
               }));
      } else {
        if (reduces) setRegion(one, realRegion(i, region, one.shape.type));
        add(std::move(one));
      }
      elements.push_back(name);
    }
    if (i.shape.tuple) w_->add(i, i.name, "tuple", realShape(i.shape), elements);
  }

  // --- Fourier transforms ---
  struct Tables {
    std::string cosine, sine;  // of 2 pi n k / N, n along the first dimension
  };

  Tables tables(const Instruction& i, std::int64_t length, const Shape& shape) {
    const auto typed = [&](const char* type) {
      Shape s = shape;
      s.type = type;
      return s;
    };
    const Shape counts = typed("s32"), wide = typed("f64");
    const auto count = [&](const char* dimension) {
      return apply(i, "iota", counts, {}, {{"iota_dimension", dimension, {}}});
    };
    const std::string n = count("0"), k = count("1");
    // Less than one turn, so that equal angles are one number.
    const std::string steps =
        apply(i, "remainder", counts,
              {apply(i, "multiply", counts, {n, k}), number(i, 0, counts, std::to_string(length))});
    char angle[40];
    std::snprintf(angle, sizeof angle, "%.17g", 2 * std::numbers::pi / static_cast<double>(length));
    const std::string turned =
        apply(i, "multiply", wide, {apply(i, "convert", wide, {steps}), number(i, 0, wide, angle)});
    Tables made;
    made.cosine = apply(i, "convert", shape, {apply(i, "cosine", wide, {turned})});
    made.sine = apply(i, "convert", shape, {apply(i, "sine", wide, {turned})});
    return made;
  }

  // The product of a tensor and a table along one dimension, which stays where it is.
  std::string along(const Instruction& i, const std::string& x, const Shape& shape, std::size_t dim,
                    const std::string& table, std::int64_t size) {
    const std::size_t rank = shape.sizes.size();
    Sizes sizes;
    for (std::size_t d = 0; d < rank; ++d)
      if (d != dim) sizes.push_back(shape.sizes[d]);
    sizes.push_back(size);
    std::string y = apply(i, "dot", arrayOf(shape, sizes), {x, table},
                          {{"lhs_contracting_dims", "{" + std::to_string(dim) + "}", {}},
                           {"rhs_contracting_dims", "{0}", {}}});
    if (dim + 1 == rank) return y;
    std::string order;
    Sizes placed = shape.sizes;
    placed[dim] = size;
    for (std::size_t d = 0; d < rank; ++d) {
      const std::size_t from = d < dim ? d : d == dim ? rank - 1 : d - 1;
      order += (d == 0 ? "" : ",") + std::to_string(from);
    }
    return apply(i, "transpose", arrayOf(shape, placed), {y},
                 {{"dimensions", "{" + order + "}", {}}});
  }

  Parts transformed(const Instruction& i, const Parts& z, const Shape& shape, std::size_t dim,
                    bool inverse) {
    const std::int64_t n = shape.sizes[dim];
    const Tables t = tables(i, n, arrayOf(shape, {n, n}));
    const auto product = [&](const std::string& x, const std::string& table) {
      return along(i, x, shape, dim, table, n);
    };
    const Parts turned{product(z.imaginary, t.sine), product(z.real, t.sine)};
    Parts y{apply(i, inverse ? "subtract" : "add", shape, {product(z.real, t.cosine), turned.real}),
            apply(i, inverse ? "add" : "subtract", shape,
                  {product(z.imaginary, t.cosine), turned.imaginary})};
    if (!inverse) return y;
    const std::string length = number(i, static_cast<double>(n), shape);
    return {apply(i, "divide", shape, {y.real, length}),
            apply(i, "divide", shape, {y.imaginary, length})};
  }

  // Of numbers 0 to n / 2 of a transform, the others being their conjugates: all but the first and
  // the one in the middle count twice, of these only the real part counts.
  std::string realInverse(const Instruction& i, const Parts& z, const Shape& shape,
                          std::int64_t n) {
    const std::size_t dim = shape.sizes.size() - 1;
    const Shape table = arrayOf(shape, {shape.sizes[dim], n});
    Shape counts = table, conditions = table;
    counts.type = "s32";
    conditions.type = "pred";
    const Tables t = tables(i, n, table);
    const std::string k = apply(i, "iota", counts, {}, {{"iota_dimension", "0", {}}});
    const auto is = [&](const std::string& x, std::int64_t value) {
      return apply(i, "compare", conditions, {x, number(i, 0, counts, std::to_string(value))},
                   {{"direction", "EQ", {}}});
    };
    const std::string once =
        apply(i, "or", conditions, {is(k, 0), is(apply(i, "add", counts, {k, k}), n)});
    const auto weighted = [&](const std::string& x, const std::string& alone) {
      return apply(i, "select", table, {once, alone, apply(i, "add", table, {x, x})});
    };
    const std::string real = along(i, z.real, shape, dim, weighted(t.cosine, t.cosine), n);
    const std::string imaginary =
        along(i, z.imaginary, shape, dim, weighted(t.sine, number(i, 0, table)), n);
    const Shape made = partShape(i.shape).type == i.shape.type ? i.shape : partShape(i.shape);
    return apply(i, "divide", i.shape,
                 {apply(i, "subtract", i.shape, {real, imaginary}),
                  number(i, static_cast<double>(n), made)});
  }

  void fourier(const Instruction& i) {
    const Attribute *type = i.attribute("fft_type"), *lengths = i.attribute("fft_length");
    if (type == nullptr || lengths == nullptr || i.operands.size() != 1)
      unsupported(i, "no type or no length of the transform");
    const Sizes length = parseIntegers(*lengths, file_);
    const Shape& given = shapeOf(i, 0);
    const std::size_t rank = given.sizes.size();
    if (length.empty() || length.size() > rank || i.shape.tuple || i.shape.sizes.size() != rank)
      unsupported(i, "another number of dimensions than of lengths");
    const bool fromReal = type->value == "RFFT", toReal = type->value == "IRFFT",
               inverse = toReal || type->value == "IFFT";
    if (!fromReal && !inverse && type->value != "FFT")
      unsupported(i, "a transform of type " + type->value);
    if (isComplex(given) == fromReal || isComplex(i.shape) == toReal)
      unsupported(i, "a transform of or to other numbers than it has");
    const std::size_t first = rank - length.size(), last = rank - 1;
    for (std::size_t d = first; d < rank; ++d) {
      const std::int64_t n = length[d - first], half = n / 2 + 1;
      if (n < 1 || n > kLongestTransform)
        unsupported(i, "a transform of length " + std::to_string(n) + ", expected 1 to " +
                           std::to_string(kLongestTransform));
      if (given.sizes[d] != (toReal && d == last ? half : n) ||
          i.shape.sizes[d] != (fromReal && d == last ? half : n))
        unsupported(i, "a transform of other sizes than its operand or result");
    }
    Shape shape = isComplex(given) ? partShape(given) : given;
    Parts z;
    std::size_t end = rank;
    if (fromReal) {
      const std::int64_t n = length.back(), half = n / 2 + 1;
      const Tables t = tables(i, n, arrayOf(shape, {n, half}));
      const std::string& x = i.operands[0].name;
      const std::string sines = along(i, x, shape, last, t.sine, half);
      z.real = along(i, x, shape, last, t.cosine, half);
      shape.sizes[last] = half;
      z.imaginary = apply(i, "negate", shape, {sines});
      end = last;
    } else {
      z = partsOf(i.operands[0].name);
      if (toReal) end = last;
    }
    for (std::size_t d = first; d < end; ++d) z = transformed(i, z, shape, d, inverse);
    if (!toReal) return finish(i, z);
    finishReal(i, "copy", {realInverse(i, z, shape, length.back())});
  }

  const Module module_;
  const std::string& file_;
  const Computation* computation_ = nullptr;
  Writer* w_ = nullptr;
  std::map<std::string, Parts> parts_;
  std::map<std::string, Computation> regions_;
};

}  // namespace

Module withoutComplex(Module module, const std::string& file) {
  const bool needed =
      std::any_of(module.computations.begin(), module.computations.end(), [](const Computation& c) {
        return std::any_of(c.instructions.begin(), c.instructions.end(), [](const Instruction& i) {
          return i.opcode == "fft" || hasComplex(i.shape);
        });
      });
  return needed ? Splitter(std::move(module), file).run() : module;
}

}  // namespace shardproof::hlo
