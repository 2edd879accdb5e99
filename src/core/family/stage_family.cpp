// SPDX-License-Identifier: Apache-2.0
#include "family/stage_family.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>

#include "ops/registry.h"
#include "shardproof/error.h"
#include "stages/canonical_reader.h"

namespace shardproof {

namespace {

constexpr char kConstant[] = "constant";

// Calls visit.number for each number that may depend on the size, visit.same for everything else
// that a canonical form has.
template <class Visitor>
class Walk {
 public:
  Walk(Stage& stage, Visitor& visit) : stage_(stage), visit_(visit) {}

  void run() {
    length(stage_.collapsedAxes);
    for (CollapsedAxis& axis : stage_.collapsedAxes) {
      integer(axis.size);
      length(axis.kept);
      for (auto& [coordinate, weight] : axis.kept) {
        integer(coordinate);
        integer(weight);
      }
      integers(axis.alone);
    }
    length(stage_.tensors);
    for (StageTensor& t : stage_.tensors) tensor(t);
    length(stage_.nodes);
    for (StageNode& n : stage_.nodes) node(n);
    equations(stage_.claims);
    equations(stage_.assumptions);
  }

 private:
  template <class List>
  void length(const List& list) {
    visit_.same(std::to_string(list.size()));
  }
  void same(std::int64_t value) { visit_.same(std::to_string(value)); }
  template <class Integer>
  void integer(Integer& value) {
    Rational number(static_cast<std::int64_t>(value));
    visit_.number(number);
    if (!number.fitsInt64() || number.toInt64() > std::numeric_limits<Integer>::max() ||
        number.toInt64() < std::numeric_limits<Integer>::min())
      throw NotWhole("a number of the stage is " + number.toString() +
                     " at one of the sizes, which is no whole number that it may be");
    value = static_cast<Integer>(number.toInt64());
  }
  template <class List>
  void integers(List& list) {
    length(list);
    for (auto& value : list) integer(value);
  }

  void tensor(StageTensor& t) {
    same(static_cast<std::int64_t>(t.origin));
    same(t.info.absent ? 1 : 0);
    same(static_cast<std::int64_t>(t.info.element));
    same(t.facts.code());
    same(t.logical ? 1 : 0);
    integers(t.info.shape);
    if (t.origin != Origin::kConstant) return;
    auto constant = std::make_shared<ConstantValue>(*t.constant);
    same(constant->fill ? 1 : 0);
    length(constant->elements);
    visit_.in(kConstant, "");
    for (Rational& element : constant->elements) visit_.number(element);
    visit_.out();
    t.constant = std::move(constant);
  }

  void node(StageNode& n) {
    same(static_cast<std::int64_t>(n.communication));
    same(n.logical ? 1 : 0);
    if (n.communication == Communication::kNone) {
      same(n.op);
      n.attributes = attributes(ops::Registry::instance().at(n.op).name, n.attributes);
    } else {
      same(static_cast<std::int64_t>(n.reduction));
      same(n.dim);
      same(n.odim);
      integer(n.member);
      integers(n.weight);
    }
    for (const auto* list : {&n.in, &n.out}) {
      length(*list);
      for (const StageTensorId t : *list) same(t);
    }
  }

  std::shared_ptr<const Attributes> attributes(const std::string& op,
                                               const std::shared_ptr<const Attributes>& given) {
    auto own = std::make_shared<Attributes>(*given);
    length(*own);
    for (auto& [key, value] : *own) {
      visit_.same(key);
      same(static_cast<std::int64_t>(value.index()));
      if (const auto* flag = std::get_if<bool>(&value)) same(*flag ? 1 : 0);
      visit_.in(op, key);
      if (auto* number = std::get_if<Rational>(&value)) visit_.number(*number);
      if (const auto* text = std::get_if<std::string>(&value)) visit_.same(*text);
      if (auto* list = std::get_if<std::vector<std::int64_t>>(&value)) integers(*list);
      visit_.out();
    }
    return own;
  }

  void equations(std::vector<Equation>& list) {
    length(list);
    for (Equation& e : list) {
      same(e.logical);
      length(e.box);
      for (auto& [low, high] : e.box) {
        integer(low);
        integer(high);
      }
      length(e.parts);
      for (auto& [tensor, weight] : e.parts) {
        same(tensor);
        integer(weight);
      }
      length(e.step);
      for (Equation::Step& s : e.step) {
        same(s.collapsed);
        integer(s.coordinate);
        integers(s.offset);
      }
    }
  }

  Stage& stage_;
  Visitor& visit_;
};

struct Reading {
  std::vector<Rational> numbers;
  // Of each number the operator and the attribute that it belongs to; empty: none.
  std::vector<std::pair<std::string, std::string>> owners;
  std::vector<std::string> rest;
  std::pair<std::string, std::string> owner;
  void in(const std::string& op, const std::string& attribute) { owner = {op, attribute}; }
  void out() { owner = {}; }
  void number(Rational& value) {
    numbers.push_back(value);
    owners.push_back(owner);
  }
  void same(std::string value) { rest.push_back(std::move(value)); }
};

struct Writing {
  const std::vector<SizedNumber>& numbers;
  std::int64_t size;
  std::size_t next = 0;
  void number(Rational& value) { value = numbers.at(next++).at(size); }
  void same(const std::string&) {}
  void in(const std::string&, const std::string&) {}
  void out() {}
};

// constant + slope m through the first two points, if all others are on it.
std::optional<SizedNumber> linear(std::span<const Rational> values,
                                  std::span<const std::int64_t> sizes) {
  const Rational slope = (values[1] - values[0]) / Rational(sizes[1] - sizes[0]);
  const SizedNumber fit{values[0] - slope * Rational(sizes[0]), slope};
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!(fit.at(sizes[i]) == values[i])) return std::nullopt;
  return fit;
}

}  // namespace

SizedNumber functionOf(const std::vector<Rational>& values, std::span<const std::int64_t> sizes) {
  if (auto fit = linear(values, sizes)) return *fit;
  std::vector<Rational> times;
  for (std::size_t i = 0; i < values.size(); ++i) times.push_back(values[i] * Rational(sizes[i]));
  if (auto fit = linear(times, sizes)) {
    fit->power = -1;
    return *fit;
  }
  std::string text;
  for (const Rational& value : values) text += (text.empty() ? "" : ", ") + value.toString();
  throw Unsupported("a number of the stage is " + text +
                    ": not a + b m, nor that divided by the size m");
}

bool mayDependOnSize(const std::string& op, const std::string& attribute) {
  constexpr std::string_view kBackward = "_backward";
  std::string_view name = op;
  if (name.ends_with(kBackward)) name.remove_suffix(kBackward.size());
  if (name == kConstant) return true;
  if (attribute == "scalar")
    return name == "mul" || name == "div" || name == "add" || name == "sub";
  return attribute == "size" && (name == "view" || name == "reshape" || name == "expand");
}

void expectOneSign(const SizedNumber& number, const std::string& what) {
  const int constant = number.constant.sign(), slope = number.slope.sign();
  if (constant * slope < 0 || (constant == 0 && slope == 0))
    throw Unsupported(what + " may change its sign with the size");
}

StageFamily::StageFamily(std::span<const std::string> forms, std::span<const std::int64_t> sizes) {
  const std::set<std::int64_t> different(sizes.begin(), sizes.end());
  if (forms.size() != sizes.size() || different.size() != sizes.size() ||
      forms.size() < kLeastMembers || *different.begin() < 1)
    throw std::logic_error("a family of stages needs forms at three different sizes");
  form_ = forms.front();
  for (std::size_t i = 0; i < forms.size(); ++i)
    fingerprint_ = (fingerprint_ * 0x9E3779B97F4A7C15ULL) ^ std::hash<std::string>()(forms[i]) ^
                   (static_cast<std::uint64_t>(sizes[i]) << 17);
  std::vector<Reading> members(forms.size());
  for (std::size_t i = 0; i < forms.size(); ++i) {
    Stage stage = readCanonicalForm(forms[i]);
    Walk(stage, members[i]).run();
    if (members[i].rest != members[0].rest ||
        members[i].numbers.size() != members[0].numbers.size())
      throw Unsupported("the stage is made of other operators at other sizes");
  }
  std::set<std::string> known;
  std::set<std::int64_t> slopes;
  for (std::size_t k = 0; k < members[0].numbers.size(); ++k) {
    std::vector<Rational> values;
    for (const Reading& member : members) values.push_back(member.numbers[k]);
    numbers_.push_back(functionOf(values, sizes));
    if (const auto& [op, attribute] = members[0].owners[k];
        !op.empty() && numbers_.back().dependsOnSize()) {
      const std::string what =
          attribute.empty() ? "a constant" : "attribute '" + attribute + "' of " + op;
      if (!mayDependOnSize(op, attribute)) throw Unsupported(what + " depends on the size");
      if (attribute != "size") expectOneSign(numbers_.back(), what);
    }
    const Rational& slope = numbers_.back().slope;
    if (slope.sign() > 0 && slope.fitsInt64() && slopes.insert(slope.toInt64()).second)
      slopes_.push_back(slope.toInt64());
    if (!numbers_.back().dependsOnSize() && known.insert(values[0].toString()).second)
      constants_.push_back(values[0]);
  }
}

Stage StageFamily::at(std::int64_t size) const {
  Stage stage = readCanonicalForm(form_);
  Writing writing{numbers_, size};
  Walk(stage, writing).run();
  return stage;
}

}  // namespace shardproof
