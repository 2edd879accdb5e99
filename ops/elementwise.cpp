// SPDX-License-Identifier: Apache-2.0
// Elementwise operators. Meanings as in the PyTorch documentation (torch.add,
// torch.nn.functional.silu, ...), over the reals.
#include <stdexcept>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

std::vector<TensorInfo> sameAsFirst(const Signature& s) {
  return {TensorInfo{shapeOf(s, 0), s.in[0]->element}};
}

// The operand itself: identity, to, contiguous (any element kind), float (reals only: an index is
// not a number here).
struct Copy {
  static std::vector<TensorInfo> infer(const Signature& s) { return sameAsFirst(s); }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    equalTensors(s, 0, slotOfResult(s, 0), relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    expectDims(e.out[0]->dims, e.in[0]->dims);
    e.out[0]->data = e.in[0]->data;
  }
};

struct Float : Copy {
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    return sameAsFirst(s);
  }
};

// Backward of a copy: the gradient. Plans list the gradient alone, or the gradient and the operand.
struct CopyBackward {
  static std::vector<TensorInfo> infer(const Signature& s) {
    if (!present(s, 0)) throw ShapeError("the gradient, operand 0, is absent (null)");
    needReal(s, 0);
    if (present(s, 1)) {
      needReal(s, 1);
      if (shapeOf(s, 1) != shapeOf(s, 0))
        throw ShapeError("the gradient has shape " + toText(shapeOf(s, 0)) + ", expected " +
                         toText(shapeOf(s, 1)));
    }
    return sameAsFirst(s);
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    equalTensors(s, 0, slotOfResult(s, 0), relations);
    if (present(s, 1)) equalTensors(s, 1, slotOfResult(s, 0), relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    Copy::eval(e);
  }
};

// As many copies of the operand as there are results.
struct MultiRef {
  static std::vector<TensorInfo> infer(const Signature& s) {
    return std::vector<TensorInfo>(s.results, sameAsFirst(s)[0]);
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    for (std::size_t r = 0; r < s.results; ++r) equalTensors(s, 0, slotOfResult(s, r), relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    for (TensorValue<A>* out : e.out) {
      if (out == nullptr) continue;
      expectDims(out->dims, e.in[0]->dims);
      out->data = e.in[0]->data;
    }
  }
};

// Operands: the gradients of the copies, null where a copy has none (the original operand is not
// listed). Result: their sum.
struct MultiRefBackward {
  static const TensorInfo* first(const Signature& s) {
    for (std::size_t i = 0; i < s.in.size(); ++i)
      if (s.in[i] != nullptr) return s.in[i];
    throw ShapeError("every gradient is absent (null), expected at least one");
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    const TensorInfo* g = first(s);
    for (std::size_t i = 0; i < s.in.size(); ++i) {
      if (s.in[i] == nullptr) continue;
      needReal(s, i);
      if (shapeOf(s, i) != g->shape)
        throw ShapeError("gradient " + std::to_string(i) + " has shape " + toText(shapeOf(s, i)) +
                         ", expected " + toText(g->shape));
    }
    return {*g};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    for (std::size_t i = 0; i < s.in.size(); ++i) {
      if (s.in[i] == nullptr) continue;
      equalTensors(s, i, slotOfResult(s, 0), relations);
    }
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    std::vector<const TensorValue<A>*> gradients;
    for (const TensorValue<A>* g : e.in)
      if (g != nullptr) gradients.push_back(g);
    if (gradients.empty()) throw std::logic_error("multiref_backward: no gradient");
    for (const TensorValue<A>* g : gradients) expectDims(e.out[0]->dims, g->dims);
    e.out[0]->data.clear();
    std::vector<typename A::Element> terms(gradients.size());
    for (std::size_t k = 0; k < gradients[0]->data.size(); ++k) {
      for (std::size_t i = 0; i < gradients.size(); ++i) terms[i] = gradients[i]->data[k];
      e.out[0]->data.push_back(weightedSum(e.algebra, terms, {}));
    }
  }
};

// --- two operands, or one and attribute `scalar` ---

struct Add {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, typename A::Element y,
                                   const Rational& alpha) {
    return a.add(x, alpha.isOne() ? y : a.scale(alpha, y));
  }
};
struct Sub {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, typename A::Element y,
                                   const Rational& alpha) {
    return a.add(x, a.scale(-alpha, y));
  }
};
struct Mul {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, typename A::Element y,
                                   const Rational&) {
    return a.mul(x, y);
  }
};
struct Div {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, typename A::Element y,
                                   const Rational&) {
    return a.mul(x, a.power(y, -2));
  }
};

// x op y with PyTorch's broadcasting, or x op scalar. add and sub: the second is multiplied by
// `alpha`. Errors: shapes that do not broadcast, operands that are not real, both or neither of y
// and `scalar`, div by the scalar 0.
template <class F>
struct Binary {
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    if (s.in.size() == 1) return {TensorInfo{shapeOf(s, 0)}};
    needReal(s, 1);
    return {TensorInfo{broadcastShapes(shapeOf(s, 0), shapeOf(s, 1))}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const> out,
                     Relations& relations) {
    for (std::size_t i = 0; i < s.in.size(); ++i)
      equalBroadcast(s, i, slotOfResult(s, 0), out[0]->shape, relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const Rational alpha = number(e.attributes, "alpha", Rational(1));
    TensorValue<A>& out = *e.out[0];
    out.data.clear();
    if (e.in.size() == 1) {
      const Rational scalar = number(e.attributes, "scalar");
      expectDims(out.dims, e.in[0]->dims);
      // A multiplication by a number is a scaling, which the proof's normal form moves freely
      // through sums.
      for (const auto& x : e.in[0]->data) {
        if constexpr (std::is_same_v<F, Mul>) out.data.push_back(e.algebra.scale(scalar, x));
        else if constexpr (std::is_same_v<F, Div>)
          out.data.push_back(e.algebra.scale(scalar.inverse(), x));
        else out.data.push_back(F::apply(e.algebra, x, e.algebra.constant(scalar), alpha));
      }
      return;
    }
    const TensorValue<A>&x = *e.in[0], &y = *e.in[1];
    const std::array<const std::vector<ReducedDim>*, 2> dims{&x.dims, &y.dims};
    expectDims(out.dims, broadcastDims(dims));
    walk<2>(sizesOf(out.dims),
            {broadcastStrides(x.dims, out.dims), broadcastStrides(y.dims, out.dims)},
            [&](const std::array<Index, 2>& o) {
              out.data.push_back(F::apply(e.algebra, x.data[at(o[0])], y.data[at(o[1])], alpha));
            });
  }
};

Interface binaryInterface(const char* name, bool alpha, bool nonZero, Traits traits) {
  Interface i;
  i.name = name;
  i.minOperands = 1;
  i.maxOperands = 2;
  i.traits = traits;
  i.traits.elementwise = true;
  i.attributes.push_back({.key = "scalar", .type = AttributeType::kNumber});
  if (alpha) i.attributes.push_back({.key = "alpha", .type = AttributeType::kNumber});
  i.check = [nonZero](const Attributes& attributes, std::size_t operands, std::size_t) {
    if (has(attributes, "scalar") != (operands == 1))
      throw std::invalid_argument("found " + std::to_string(operands) +
                                  (operands == 1 ? " operand" : " operands") +
                                  (operands == 1 ? " and no 'scalar'" : " and 'scalar'") +
                                  ", expected two operands, or one and 'scalar'");
    if (nonZero && operands == 1 && number(attributes, "scalar").isZero())
      throw std::invalid_argument("attribute 'scalar': found 0, expected another divisor");
  };
  return i;
}

// --- one operand ---

// F::apply(algebra, x, attributes) at every element.
template <class F>
struct Unary {
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    return {TensorInfo{shapeOf(s, 0)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    equalTensors(s, 0, slotOfResult(s, 0), relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    expectDims(e.out[0]->dims, e.in[0]->dims);
    e.out[0]->data.clear();
    e.out[0]->data.reserve(e.in[0]->data.size());
    for (const auto& x : e.in[0]->data)
      e.out[0]->data.push_back(F::apply(e.algebra, x, e.attributes));
  }
};

template <class A>
typename A::Element call(A& a, Function f, typename A::Element x) {
  const std::array<typename A::Element, 1> arguments{x};
  return a.apply(f, {}, std::span<const typename A::Element>(arguments));
}

struct Neg {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return a.scale(Rational(-1), x);
  }
};
struct Exp {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return a.exp(x);
  }
};
struct Log {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return call(a, Function::kLog, x);
  }
};
struct Sqrt {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return a.power(x, 1);
  }
};
struct Rsqrt {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return a.power(x, -1);
  }
};
struct Square {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return a.power(x, 4);
  }
};
struct Sigmoid {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return call(a, Function::kSigmoid, x);
  }
};
struct Tanh {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return call(a, Function::kTanh, x);
  }
};
// A function of which nothing is known but that equal arguments give equal results.
template <Function f>
struct Opaque {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return call(a, f, x);
  }
};
// x sigmoid(x)
struct Silu {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return a.mul(x, call(a, Function::kSigmoid, x));
  }
};
// max(x, 0) = x [x > 0]; derivative 0 at 0, as in PyTorch
struct Relu {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes&) {
    return a.mul(x, call(a, Function::kStep, x));
  }
};
// approximate = "none": x Phi(x); "tanh": x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Hendrycks
// and Gimpel, arXiv 1606.08415.
struct Gelu {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes& attributes) {
    if (text(attributes, "approximate", "none") == "none")
      return a.mul(x, call(a, Function::kNormalCdf, x));
    const auto inner = a.add(x, a.scale(Rational(44715, 1000000), a.power(x, 6)));
    const auto t =
        call(a, Function::kTanh, a.mul(a.apply(Function::kSqrtTwoOverPi, {}, {}), inner));
    return a.scale(Rational(1, 2), a.mul(x, a.add(a.constant(Rational(1)), t)));
  }
};
// x^scalar for integer and half-integer scalars, exactly. x^0 = 1.
struct Pow {
  template <class A>
  static typename A::Element apply(A& a, typename A::Element x, const Attributes& attributes) {
    const Rational halves = number(attributes, "scalar") * Rational(2);
    // x^0 is 1 wherever there is an x: what is said of the value is said of x too.
    if (halves.isZero()) return a.add(a.scale(Rational(0), x), a.constant(Rational(1)));
    return a.power(x, static_cast<int>(halves.toInt64()));
  }
};

// Each element times the keep mask, divided by 1 - p. Operand 1, if present, is the mask: integers
// of the first operand's shape, 1 where the element is kept. Otherwise the mask is an opaque
// function of the seed, of p and of the element's full position in the operand. p = 0 is the
// identity, p = 1 gives zeros (torch.nn.functional.dropout).
struct Dropout {
  static bool masks(const Attributes& attributes) {
    const Rational p = number(attributes, "p");
    return !p.isZero() && !p.isOne();
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    if (present(s, 1)) {
      needInteger(s, 1);
      if (shapeOf(s, 1) != shapeOf(s, 0))
        throw ShapeError("the mask has shape " + toText(shapeOf(s, 1)) + ", expected " +
                         toText(shapeOf(s, 0)));
    }
    return {TensorInfo{shapeOf(s, 0)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const int result = slotOfResult(s, 0);
    equalTensors(s, 0, result, relations);
    if (present(s, 1)) {
      for (std::size_t d = 0; d < shapeOf(s, 0).size(); ++d) relations.equal(ref(1, d), ref(0, d));
      // The mask's values are 0 and 1.
      const int values = result + 1;
      relations.virtualTensor(values, Shape{2});
      relations.range({1, kValues}, 0, {values, 0});
      relations.keep({values, 0});
      return;
    }
    if (!masks(s.attributes)) return;
    for (std::size_t d = 0; d < shapeOf(s, 0).size(); ++d) {
      relations.keep(ref(0, d));  // two positions never share a mask entry
      relations.absolute(ref(0, d));
    }
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& x = *e.in[0];
    TensorValue<A>& out = *e.out[0];
    expectDims(out.dims, x.dims);
    const Rational p = number(e.attributes, "p");
    if (p.isZero()) {
      out.data = x.data;
      return;
    }
    if (p.isOne()) {
      // Zero wherever there is an x: what is said of the value is said of x too.
      out.data.clear();
      for (const auto& value : x.data) out.data.push_back(e.algebra.scale(Rational(0), value));
      return;
    }
    const Rational scale = (Rational(1) - p).inverse();
    out.data.clear();
    const auto push = [&](std::size_t k, typename A::Element keeps) {
      out.data.push_back(e.algebra.scale(scale, e.algebra.mul(keeps, x.data[k])));
    };
    if (e.in.size() > 1 && e.in[1] != nullptr) {
      expectDims(e.in[1]->dims, x.dims);
      for (std::size_t k = 0; k < x.data.size(); ++k)
        push(k, e.algebra.indicator(e.in[1]->data[k], 1));
      return;
    }
    const Rational numerator = Rational::parse(p.numeratorString()),
                   denominator = Rational::parse(p.denominatorString());
    if (!numerator.fitsInt64() || !denominator.fitsInt64())
      throw Unsupported("dropout: p = " + p.toString() + " has too many digits");
    for (const ReducedDim& d : x.dims)
      if (d.reduced()) inconsistent("a dimension of dropout is reduced");
    std::vector<std::int64_t> params(3 + x.dims.size(), 0);
    params[0] = integer(e.attributes, "seed");
    params[1] = numerator.toInt64();  // masks for different p differ, whatever the seed
    params[2] = denominator.toInt64();
    const std::vector<Index> sizes = sizesOf(x.dims);
    for (std::size_t k = 0; k < x.data.size(); ++k) {
      auto rest = static_cast<Index>(k);
      for (std::size_t d = sizes.size(); d-- > 0;) {
        params[3 + d] = x.dims[d].position[at(rest % sizes[d])];
        rest /= sizes[d];
      }
      push(k, e.algebra.apply(Function::kDropoutMask, params, {}));
    }
  }
};

template <class F>
void unary(Catalog& catalog, const char* name, Traits traits,
           std::vector<AttributeRule> attributes = {},
           std::function<void(const Attributes&, std::size_t, std::size_t)> check = nullptr) {
  traits.elementwise = true;
  define<Unary<F>>(catalog, {.name = name,
                             .attributes = std::move(attributes),
                             .traits = traits,
                             .check = std::move(check)});
}

template <Function f>
void opaque(Catalog& catalog, const char* name) {
  define<Unary<Opaque<f>>>(
      catalog,
      {.name = name, .differentiable = false, .traits = {.elementwise = true, .total = true}});
}

}  // namespace

void defineElementwise(Catalog& catalog) {
  for (const char* name : {"identity", "to", "contiguous"})
    define<Copy>(catalog, {.name = name, .differentiable = false, .traits = kRearranges});
  define<Float>(catalog, {.name = "float", .differentiable = false, .traits = kRearranges});
  for (const char* name :
       {"identity_backward", "to_backward", "contiguous_backward", "float_backward"})
    define<CopyBackward>(catalog, {.name = name,
                                   .maxOperands = 2,
                                   .optionalOperands = {1},
                                   .differentiable = false,
                                   .traits = kRearranges});
  define<MultiRef>(catalog, {.name = "multiref",
                             .maxResults = kAnyNumber,
                             .differentiable = false,
                             .traits = kRearranges});
  Interface back{.name = "multiref_backward", .maxOperands = kAnyNumber, .differentiable = false};
  back.everyOperandOptional = true;
  back.traits = {.affine = true, .total = true, .keepsSign = true};
  define<MultiRefBackward>(catalog, back);

  define<Binary<Add>>(
      catalog, binaryInterface("add", true, false,
                               {.sums = true, .affine = true, .total = true, .keepsSign = true}));
  define<Binary<Sub>>(catalog,
                      binaryInterface("sub", true, false, {.affine = true, .total = true}));
  define<Binary<Mul>>(catalog,
                      binaryInterface("mul", false, false, {.total = true, .keepsSign = true}));
  define<Binary<Div>>(catalog, binaryInterface("div", false, true, {.keepsSign = true}));

  unary<Neg>(catalog, "neg", {.affine = true, .total = true});
  unary<Exp>(catalog, "exp",
             {.total = true, .finite = true, .keepsSign = true, .sign = Sign::kPositive});
  unary<Log>(catalog, "log", {});
  unary<Sqrt>(catalog, "sqrt", {.keepsSign = true, .sign = Sign::kNotNegative});
  unary<Rsqrt>(catalog, "rsqrt", {.keepsSign = true, .sign = Sign::kPositive});
  unary<Square>(catalog, "square", {.total = true, .keepsSign = true, .sign = Sign::kNotNegative});
  unary<Sigmoid>(catalog, "sigmoid",
                 {.total = true, .finite = true, .keepsSign = true, .sign = Sign::kPositive});
  unary<Tanh>(catalog, "tanh", {.total = true, .finite = true, .keepsSign = true});
  opaque<Function::kSine>(catalog, "sin");
  opaque<Function::kCosine>(catalog, "cos");
  opaque<Function::kErf>(catalog, "erf");
  opaque<Function::kFloor>(catalog, "floor");
  opaque<Function::kCeil>(catalog, "ceil");
  opaque<Function::kRound>(catalog, "round");
  opaque<Function::kTruncate>(catalog, "trunc");
  unary<Silu>(catalog, "silu", {.total = true, .keepsSign = true});
  unary<Relu>(catalog, "relu",
              {.total = true, .finite = true, .keepsSign = true, .sign = Sign::kNotNegative});
  unary<Gelu>(catalog, "gelu", {.total = true, .keepsSign = true},
              {{.key = "approximate", .type = AttributeType::kText, .choices = {"none", "tanh"}}});
  unary<Pow>(catalog, "pow", {.keepsSign = true},
             {{.key = "scalar",
               .type = AttributeType::kNumber,
               .required = true,
               .min = Rational(-1000),
               .max = Rational(1000)}},
             [](const Attributes& attributes, std::size_t, std::size_t) {
               const Rational scalar = number(attributes, "scalar");
               if (!(scalar * Rational(2)).isInteger())
                 throw std::invalid_argument("attribute 'scalar': found " + scalar.toString() +
                                             ", expected an integer or half-integer");
             });
  define<Dropout>(catalog,
                  {.name = "dropout",
                   .attributes = {{.key = "p",
                                   .type = AttributeType::kNumber,
                                   .required = true,
                                   .min = Rational(0),
                                   .max = Rational(1)},
                                  {.key = "seed", .type = AttributeType::kInteger}},
                   .maxOperands = 2,
                   .optionalOperands = {1},
                   .followsLogicalPosition = true,
                   .traits = {.elementwise = true, .affine = true, .total = true},
                   .check = [](const Attributes& attributes, std::size_t operands, std::size_t) {
                     if (Dropout::masks(attributes) && operands < 2 && !has(attributes, "seed"))
                       throw std::invalid_argument(
                           "attribute 'seed' is missing, expected an integer when p is not 0 or 1 "
                           "and there is no mask");
                   }});
}

}  // namespace shardproof::ops
