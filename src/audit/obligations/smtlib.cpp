// SPDX-License-Identifier: Apache-2.0
#include "obligations/smtlib.h"

#include <algorithm>
#include <stdexcept>

#include "shardproof/error.h"

namespace shardproof {

namespace {

// Expressions nest at most so deep before a subterm gets a name of its own: readers recurse.
constexpr int kMostNesting = 20;

// Names come from files: no line of theirs may end the comment.
std::string inComment(const std::string& text) {
  std::string clean = text;
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return clean;
}

class Writer {
 public:
  Writer(const SmtQuery& query, const SmtLibNotes& notes, std::size_t mostBytes)
      : query_(query), notes_(notes), most_(mostBytes) {
    countUses();
  }

  std::string write() {
    for (const std::string& line : notes_.head) append("; " + inComment(line) + "\n");
    append("(set-info :smt-lib-version 2.6)\n(set-info :status " + notes_.status +
           ")\n(set-logic " + std::string(logicOf(query_)) + ")\n");
    declare();
    define();
    if (!query_.facts.empty()) append("; what holds wherever both sides are defined\n");
    for (const std::uint32_t fact : query_.facts) append("(assert " + text_[fact] + ")\n");
    append("; the negated claim: some two sides differ\n");
    if (query_.claims.empty()) append("(assert false)\n");
    else append("(assert (or false\n");
    for (std::size_t i = 0; i < query_.claims.size(); ++i) {
      const auto& [a, b] = query_.claims[i];
      append("  (distinct " + text_[a] + " " + text_[b] + ")");
      if (notes_.claim) append("  ; " + inComment(notes_.claim(i)));
      append("\n");
    }
    if (!query_.claims.empty()) append("))\n");
    append("(check-sat)\n(exit)\n");
    return std::move(out_);
  }

 private:
  void append(const std::string& text) {
    if (out_.size() + text.size() > most_)
      throw Unsupported("as SMT-LIB it is longer than " + std::to_string(most_ / 1'000'000) +
                        " MB");
    out_ += text;
  }

  void countUses() {
    uses_.assign(query_.nodes.size(), 0);
    for (const std::uint32_t f : query_.facts) ++uses_[f];
    for (const auto& [a, b] : query_.claims) {
      ++uses_[a];
      ++uses_[b];
    }
    for (std::size_t i = query_.nodes.size();
         i-- > 0;) {  // operands stand before: when i is reached all its uses are counted
      if (uses_[i] == 0) continue;
      for (const std::uint32_t o : query_.operandsOf(query_.nodes[i])) ++uses_[o];
    }
  }

  static const char* name(SmtSort sort) {
    return sort == SmtSort::kReal ? "Real" : sort == SmtSort::kInteger ? "Int" : "Bool";
  }

  void declare() {
    std::vector<std::pair<std::uint32_t, SmtSort>> variables;
    std::vector<char> applied(query_.symbols.size(), 0);
    for (std::size_t i = 0; i < query_.nodes.size(); ++i) {
      const SmtQuery::Node& n = query_.nodes[i];
      if (uses_[i] == 0) continue;
      if (n.kind == SmtKind::kVariable) variables.emplace_back(n.data, n.sort);
      if (n.kind == SmtKind::kApply) applied[n.data] = 1;
    }
    std::sort(variables.begin(), variables.end());
    for (const auto& [v, sort] : variables) {
      append("(declare-const x" + std::to_string(v) + " " + name(sort) + ")");
      if (notes_.variable) append("  ; " + inComment(notes_.variable(v)));
      append("\n");
    }
    for (std::size_t s = 0; s < query_.symbols.size(); ++s) {
      if (!applied[s]) continue;
      const SmtQuery::Symbol& symbol = query_.symbols[s];
      std::string sorts;
      for (std::uint32_t i = 0; i < symbol.arity; ++i) sorts += i == 0 ? "Real" : " Real";
      append("(declare-fun " + symbol.name + " (" + sorts + ") " + name(symbol.result) + ")\n");
    }
  }

  // Leaves `text_` of every node as it is to be written where it is used.
  void define() {
    text_.resize(query_.nodes.size());
    std::vector<int> nesting(query_.nodes.size(), 0);
    for (std::size_t i = 0; i < query_.nodes.size(); ++i) {
      const SmtQuery::Node& n = query_.nodes[i];
      if (uses_[i] == 0) continue;
      std::string written = expression(n);
      if (n.count == 0) {
        text_[i] = std::move(written);
        continue;
      }
      for (const std::uint32_t o : query_.operandsOf(n))
        nesting[i] = std::max(nesting[i], nesting[o] + 1);
      if (uses_[i] > 1 || nesting[i] >= kMostNesting) {
        const std::string defined = "t" + std::to_string(i);
        append("(define-fun " + defined + " () " + name(n.sort) + " " + written + ")\n");
        text_[i] = defined;
        nesting[i] = 0;
      } else {
        text_[i] = std::move(written);
      }
      for (const std::uint32_t o : query_.operandsOf(n)) {
        if (--uses_[o] == 0) std::string().swap(text_[o]);  // written for the last time
      }
    }
  }

  std::string expression(const SmtQuery::Node& n) const {
    switch (n.kind) {
      case SmtKind::kNumber:
        return number(query_.numbers[n.data], n.sort);
      case SmtKind::kVariable:
        return "x" + std::to_string(n.data);
      case SmtKind::kSum:
        return call("+", n);
      case SmtKind::kProduct:
        return call("*", n);
      case SmtKind::kToReal:
        return call("to_real", n);
      case SmtKind::kApply:
        return n.count == 0 ? query_.symbols[n.data].name : call(query_.symbols[n.data].name, n);
      case SmtKind::kEqual:
        return call("=", n);
      case SmtKind::kGreater:
        return call(">", n);
      case SmtKind::kAtLeast:
        return call(">=", n);
      case SmtKind::kOr:
        return call("or", n);
      case SmtKind::kIndicator:
        return "(ite " + text_[query_.operandsOf(n)[0]] + " 1.0 0.0)";
    }
    throw std::logic_error("unknown kind of expression");
  }

  std::string call(const std::string& function, const SmtQuery::Node& n) const {
    std::string text = "(" + function;
    for (const std::uint32_t o : query_.operandsOf(n)) text += " " + text_[o];
    return text + ")";
  }

  // A numeral has no sign, and a quotient of two is a term.
  static std::string number(const Rational& r, SmtSort sort) {
    const bool negative = r.sign() < 0;
    const Rational size = negative ? -r : r;
    const char* point = sort == SmtSort::kReal ? ".0" : "";
    std::string text = size.numeratorString() + point;
    if (!size.isInteger()) text = "(/ " + text + " " + size.denominatorString() + point + ")";
    return negative ? "(- " + text + ")" : text;
  }

  const SmtQuery& query_;
  const SmtLibNotes& notes_;
  std::size_t most_;
  std::vector<std::uint32_t> uses_;
  std::vector<std::string> text_;
  std::string out_;
};

}  // namespace

const char* logicOf(const SmtQuery& query) {
  const bool integers =
      std::any_of(query.nodes.begin(), query.nodes.end(),
                  [](const SmtQuery::Node& n) { return n.sort == SmtSort::kInteger; });
  return integers ? "QF_UFNIRA" : "QF_UFNRA";
}

std::string smtLibText(const SmtQuery& query, const SmtLibNotes& notes, std::size_t mostBytes) {
  return Writer(query, notes, mostBytes).write();
}

}  // namespace shardproof
