// SPDX-License-Identifier: Apache-2.0
// All functions are in pieces, so the integers fall into stretches in which each of them is
// a x + b. In a stretch where all are constant one value is as good as another. A stretch that is
// an earlier one moved by c, in which all functions have the values that they have there, needs
// none of its values: negative indices that are wrapped are the same rows as others. Nor does one
// where all are constant, if an earlier stretch has that at one of its values: what is moved into
// bounds is the last row. What is not noticed to be equal is kept, which is never wrong.
#include "reader/hlo/representatives.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace shardproof::hlo {
namespace {

constexpr std::size_t kMostCompared = 10'000'000;  // functions at stretches

struct Form {
  std::int64_t a = 0;
  Rational b;
};

struct Part {
  Stretch values;
  std::vector<Form> forms;
  std::optional<std::size_t> moving;  // the first function that is not constant

  Rational at(std::size_t k, std::int64_t x) const {
    return Rational(forms[k].a) * Rational(x) + forms[k].b;
  }
};

std::optional<Form> formAt(const Pieces& pieces, Stretch part) {
  const auto after = std::upper_bound(pieces.begin(), pieces.end(), part.first,
                                      [](std::int64_t x, const Piece& p) { return x < p.low; });
  if (after == pieces.begin()) return std::nullopt;
  const Piece& p = *(after - 1);
  if (p.high < part.second) return std::nullopt;
  return Form{p.a, p.b};
}

// What two stretches have in common if one is the other moved.
std::string movedText(const Part& p) {
  const Form& first = p.forms[*p.moving];
  const Rational start = first.b / Rational(first.a);  // x + start is the same in both
  std::string text;
  for (const Form& f : p.forms)
    text += std::to_string(f.a) + " " + (f.b - Rational(f.a) * start).toString() + ";";
  return text;
}

// The value of a moving part at which all functions have these constants.
std::optional<std::int64_t> sameConstants(const Part& constant, const Part& moving) {
  const Form& first = moving.forms[*moving.moving];
  const Rational x = (constant.forms[*moving.moving].b - first.b) / Rational(first.a);
  if (!x.isInteger() || !x.fitsInt64()) return std::nullopt;
  const std::int64_t at = x.toInt64();
  if (at < moving.values.first || at >= moving.values.second) return std::nullopt;
  for (std::size_t k = 0; k < moving.forms.size(); ++k)
    if (!(moving.at(k, at) == constant.forms[k].b)) return std::nullopt;
  return at;
}

void take(Stretches& from, Stretch away) {
  Stretches rest;
  for (const auto& [low, high] : from) {
    if (low < std::min(high, away.first)) rest.emplace_back(low, std::min(high, away.first));
    if (std::max(low, away.second) < high) rest.emplace_back(std::max(low, away.second), high);
  }
  from = std::move(rest);
}

std::vector<Part> partsOf(Stretch range, std::span<const Pieces> functions) {
  std::set<std::int64_t> cuts{range.first, range.second, 0};
  for (const Pieces& pieces : functions)
    for (const Piece& p : pieces) cuts.insert({p.low, p.high});
  std::vector<Part> parts, below;
  std::optional<std::int64_t> last;
  for (const std::int64_t cut : cuts) {
    if (cut < range.first || cut > range.second) continue;
    if (last) (cut <= 0 ? below : parts).push_back({{*last, cut}, {}, {}});
    last = cut;
  }
  parts.insert(parts.end(), below.rbegin(), below.rend());
  for (Part& part : parts) {
    const auto [low, high] = part.values;
    for (const Pieces& pieces : functions) {
      // Where a function has no value it has another one than all others.
      Form f = formAt(pieces, part.values).value_or(Form{0, Rational(1, 3)});
      if (high == low + 1) f = {0, Rational(f.a) * Rational(low) + f.b};
      if (f.a != 0 && !part.moving) part.moving = part.forms.size();
      part.forms.push_back(std::move(f));
    }
  }
  return parts;
}

}  // namespace

Stretches intersection(const Stretches& values, Stretch within) {
  Stretches result;
  for (const auto& [low, high] : values)
    if (std::max(low, within.first) < std::min(high, within.second))
      result.emplace_back(std::max(low, within.first), std::min(high, within.second));
  return result;
}

Stretches representatives(Stretch range, std::span<const Pieces> given,
                          std::span<const Pieces> leftOut, std::int64_t mostOfEach) {
  std::vector<Pieces> functions(given.begin(), given.end());
  functions.insert(functions.end(), leftOut.begin(), leftOut.end());
  const std::vector<Part> parts = partsOf(range, functions);
  const bool compares = parts.size() * functions.size() <= kMostCompared;
  Stretches kept;
  std::set<std::string> constants;
  std::map<std::string, std::vector<const Part*>> moved;
  std::vector<const Part*> moving;
  for (const Part& part : parts) {
    if (std::any_of(part.forms.begin() + static_cast<std::ptrdiff_t>(given.size()),
                    part.forms.end(), [](const Form& f) { return !f.b.isZero(); }))
      continue;
    const auto [low, high] = part.values;
    if (part.moving) {
      Stretches own{part.values};
      if (compares) {
        const Form& first = part.forms[*part.moving];
        std::vector<const Part*>& same = moved[movedText(part)];
        for (const Part* other : same) {
          // x here is x + by there.
          const Form& there = other->forms[*part.moving];
          const Rational by = (first.b - there.b) / Rational(first.a);
          if (!by.isInteger() || !by.fitsInt64()) continue;
          take(own, {other->values.first - by.toInt64(), other->values.second - by.toInt64()});
        }
        same.push_back(&part);
        moving.push_back(&part);
      }
      kept.insert(kept.end(), own.begin(), own.end());
      continue;
    }
    if (compares && mostOfEach <= 1) {
      std::string text;
      for (const Form& f : part.forms) text += f.b.toString() + ";";
      if (!constants.insert(std::move(text)).second) continue;
      if (moving.size() * parts.size() * functions.size() <= kMostCompared &&
          std::any_of(moving.begin(), moving.end(),
                      [&](const Part* m) { return sameConstants(part, *m).has_value(); }))
        continue;
    }
    const std::int64_t count = std::min(high - low, std::max<std::int64_t>(mostOfEach, 1));
    kept.push_back(low >= 0 ? Stretch{low, low + count} : Stretch{high - count, high});
  }
  std::sort(kept.begin(), kept.end());
  Stretches result;
  for (const Stretch& s : kept) {
    if (!result.empty() && result.back().second == s.first) result.back().second = s.second;
    else result.push_back(s);
  }
  return result;
}

}  // namespace shardproof::hlo
