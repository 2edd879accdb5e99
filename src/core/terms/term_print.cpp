// SPDX-License-Identifier: Apache-2.0
// Terms for people: x[0,1]*w[1,0] + 1/2*exp(...).
#include <string>

#include "terms/term_store.h"

namespace shardproof {
namespace {

class Printer {
 public:
  Printer(const TermAlgebra& algebra, const std::vector<std::string>& names, std::size_t limit)
      : algebra_(algebra), names_(names), limit_(limit) {}

  // Every level of nesting writes before it descends, so the limit bounds the depth, too.
  void print(Term t, bool factor) {
    if (full()) return;
    switch (algebra_.kind(t)) {
      case TermKind::kConstant:
        out_ += algebra_.constantValue(t).toString();
        break;
      case TermKind::kNegativeInfinity:
        out_ += "-inf";
        break;
      case TermKind::kVariable: {
        const std::uint32_t v = algebra_.variableIndex(t);
        if (v < names_.size()) {
          out_ += names_[v];
        } else {
          out_.append("v").append(std::to_string(v));
        }
        break;
      }
      case TermKind::kSum:
        sum(t, factor);
        break;
      case TermKind::kProduct:
        product(t);
        break;
      case TermKind::kExp:
        call("exp", {}, t);
        break;
      case TermKind::kSqrt:
        call("sqrt", {}, t);
        break;
      case TermKind::kFunction:
        call(ops::name(algebra_.function(t)), algebra_.parameters(t), t);
        break;
      case TermKind::kIndicator:
        out_ += "[";
        print(algebra_.arguments(t)[0], false);
        out_.append(" = ").append(std::to_string(algebra_.parameters(t)[0])).append("]");
        break;
    }
  }

  std::string take() {
    if (!full()) return std::move(out_);
    out_.resize(limit_);
    return out_ + "...";
  }

 private:
  bool full() const { return out_.size() > limit_; }

  void sum(Term t, bool parenthesised) {
    if (parenthesised) out_ += "(";
    bool first = true;
    const auto sign = [&](bool negative) {
      out_ += first ? (negative ? "-" : "") : (negative ? " - " : " + ");
      first = false;
    };
    for (const TermAlgebra::Part& p : algebra_.parts(t)) {
      if (full()) return;
      const bool negative = p.factor.sign() < 0;
      const Rational size = negative ? -p.factor : p.factor;
      sign(negative);
      if (!size.isOne()) out_ += size.toString() + "*";
      print(p.term, !size.isOne() || negative);
    }
    const Rational constant = algebra_.constantValue(t);
    if (!constant.isZero()) {
      sign(constant.sign() < 0);
      out_ += (constant.sign() < 0 ? -constant : constant).toString();
    }
    if (parenthesised) out_ += ")";
  }

  void product(Term t) {
    bool first = true;
    for (const TermAlgebra::Part& p : algebra_.parts(t)) {
      if (full()) return;
      if (!first) out_ += "*";
      first = false;
      const bool nested = algebra_.kind(p.term) == TermKind::kProduct;
      if (nested) out_ += "(";
      print(p.term, true);
      if (nested) out_ += ")";
      if (p.factor.isOne()) continue;
      const bool integer = p.factor.isInteger();
      out_.append(integer ? "^" : "^(").append(p.factor.toString()).append(integer ? "" : ")");
    }
  }

  void call(const char* function, const std::vector<std::int64_t>& parameters, Term t) {
    out_ += function;
    if (!parameters.empty()) {
      const char* separator = "<";
      for (const std::int64_t p : parameters) {
        out_.append(separator).append(std::to_string(p));
        separator = ",";
      }
      out_ += ">";
    }
    out_ += "(";
    bool first = true;
    for (const Term a : algebra_.arguments(t)) {
      if (full()) return;
      if (!first) out_ += ", ";
      first = false;
      print(a, false);
    }
    out_ += ")";
  }

  const TermAlgebra& algebra_;
  const std::vector<std::string>& names_;
  std::size_t limit_;
  std::string out_;
};

}  // namespace

std::string TermAlgebra::toString(Term t, const std::vector<std::string>& variableNames,
                                  std::size_t limit) const {
  Printer printer(*this, variableNames, limit);
  printer.print(t, false);
  return printer.take();
}

}  // namespace shardproof
