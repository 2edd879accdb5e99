// SPDX-License-Identifier: Apache-2.0
// convolution and reduce-window: sums (or extrema) over the positions of a window, written out.
#include <numeric>

#include "reader/hlo/lowering.h"
#include "reader/hlo/window.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

constexpr std::int64_t kMostTerms = 4096;

// The padding that padValue() takes.
Sizes paddingOf(const Window& w) { return {w.low, w.high, w.baseDilation - 1}; }
std::int64_t paddedSize(const Window& w, std::int64_t size) {
  return (size - 1) * w.baseDilation + 1 + w.low + w.high;
}

}  // namespace

// A convolution as products over [group, batch, input feature, places...] and [group, input
// feature, output feature, positions...]. Along each dimension of the window either its positions
// are gone through, each with a stretch of the left operand, or its places, each with a window.
class Convolution {
 public:
  Convolution(Lowering& lowering, std::vector<Window> windows, Sizes places)
      : lowering_(lowering), windows_(std::move(windows)), places_(std::move(places)) {}

  std::int64_t terms() const {
    std::int64_t n = 1;
    for (std::size_t d = 0; d < windows_.size(); ++d) {
      n *= byPosition(d) ? windows_[d].size : places_[d];
      if (n > kMostTerms) return n;
    }
    return n;
  }

  // [batch, group, output feature, places...]
  std::string from(std::size_t d, const std::string& left, const std::string& right) {
    if (d == windows_.size()) return product(left, right);
    const Window& w = windows_[d];
    const std::size_t dim = d + 3;
    if (byPosition(d)) {
      std::string sum;
      for (std::int64_t p = 0; p < w.size; ++p) {
        const std::int64_t low = p * w.dilation, high = low + (places_[d] - 1) * w.stride + 1;
        const std::string term = from(d + 1, lowering_.sliceDim(left, dim, low, high, w.stride),
                                      lowering_.sliceDim(right, dim, p, p + 1));
        sum = sum.empty() ? term : lowering_.binary("add", sum, term, lowering_.sizesOf(term));
      }
      return sum;
    }
    std::vector<std::string> pieces;
    for (std::int64_t s = 0; s < places_[d]; ++s) {
      const std::int64_t low = s * w.stride, high = low + (w.size - 1) * w.dilation + 1;
      pieces.push_back(from(d + 1, lowering_.sliceDim(left, dim, low, high, w.dilation), right));
    }
    return lowering_.cat(pieces, dim);
  }

 private:
  bool byPosition(std::size_t d) const { return windows_[d].size <= places_[d]; }

  std::string product(const std::string& left, const std::string& right) {
    std::string l = "gbi", r = "gio", y = "bgo";
    const Sizes &a = lowering_.sizesOf(left), &b = lowering_.sizesOf(right);
    Sizes kept(b.begin(), b.begin() + 3), sizes{a[1], a[0], b[2]}, whole = sizes;
    for (std::size_t d = 0; d < windows_.size(); ++d) {
      const char letter = static_cast<char>('A' + d);
      l += letter;
      if (byPosition(d)) {
        y += letter;
        sizes.push_back(places_[d]);
        whole.push_back(places_[d]);
      } else {
        r += letter;
        kept.push_back(windows_[d].size);
        whole.push_back(1);
      }
    }
    const std::string z =
        lowering_.graph.emit("einsum", {left, lowering_.view(right, kept)},
                             {{"equation", quotedJson(l + "," + r + "->" + y)}}, sizes);
    return lowering_.view(z, whole);
  }

  Lowering& lowering_;
  std::vector<Window> windows_;
  Sizes places_;
};

Value Lowering::lowerConvolution(const Frame& frame, const Instruction& i) {
  if (i.operands.size() != 2) unsupported(i, "another number of operands, expected 2");
  const Attribute *labels = i.attribute("dim_labels"), *window = i.attribute("window");
  if (labels == nullptr) unsupported(i, "no attribute 'dim_labels'");
  const auto count = [&](const char* name) {
    const Attribute* a = i.attribute(name);
    return a == nullptr ? std::int64_t{1} : parseInteger(*a, file_);
  };
  const std::int64_t featureGroups = count("feature_group_count"),
                     batchGroups = count("batch_group_count");
  const ConvolutionDims dims = parseConvolutionDims(*labels, file_);
  const std::vector<Window> windows =
      window == nullptr ? std::vector<Window>{} : parseWindow(*window, file_);
  const Value &x = operand(frame, i, 0), &kernel = operand(frame, i, 1);
  const std::size_t n = windows.size();
  if (dims.left.size() != n || x.shape.sizes.size() != n + 2 ||
      kernel.shape.sizes.size() != n + 2 || n > 20)
    unsupported(i, "operands, window and labels of different numbers of dimensions");
  const std::int64_t batch = x.shape.sizes[at(dims.batch)],
                     feature = x.shape.sizes[at(dims.feature)],
                     input = kernel.shape.sizes[at(dims.input)],
                     output = kernel.shape.sizes[at(dims.output)];
  const std::int64_t groups = std::max(featureGroups, batchGroups);
  if (featureGroups < 1 || batchGroups < 1 || (featureGroups > 1 && batchGroups > 1) ||
      feature != featureGroups * input || batch % batchGroups != 0 || output % groups != 0)
    unsupported(i, "features, batches and groups that do not fit together");
  Sizes places, expected(n + 2), padded = x.shape.sizes, reversed;
  std::vector<Sizes> padding(n + 2, Sizes{0, 0, 0});
  expected[at(dims.toBatch)] = batch / batchGroups;
  expected[at(dims.toFeature)] = output;
  for (std::size_t d = 0; d < n; ++d) {
    const Window& w = windows[d];
    const std::size_t left = at(dims.left[d]);
    if (kernel.shape.sizes[at(dims.right[d])] != w.size)
      unsupported(i, "a window of another size than its operand");
    places.push_back(w.places(x.shape.sizes[left]));
    expected[at(dims.to[d])] = places.back();
    if (places.back() < 1) unsupported(i, "a window that has no place");
    padding[left] = paddingOf(w);
    padded[left] = paddedSize(w, x.shape.sizes[left]);
    if (w.reversed) reversed.push_back(dims.right[d]);
  }
  expectShape(i, expected);
  Shape wide = x.shape;
  wide.sizes = padded;
  const Value zero = tableValue({}, uniformTable({}, shared_.scalars.rational(0)));
  std::string left = node(padValue(i, x, zero, wide, padding)),
              right = node(reverseValue(kernel, reversed));
  Sizes leftOrder{dims.batch, dims.feature}, rightOrder{dims.input, dims.output};
  leftOrder.insert(leftOrder.end(), dims.left.begin(), dims.left.end());
  rightOrder.insert(rightOrder.end(), dims.right.begin(), dims.right.end());
  left = permute(left, leftOrder);
  right = permute(right, rightOrder);
  const auto regroup = [&](const std::string& t, Sizes front, const Sizes& order) {
    const Sizes& own = sizesOf(t);
    front.insert(front.end(), own.begin() + 2, own.end());
    Sizes all = order;
    for (std::size_t d = order.size(); d < front.size(); ++d)
      all.push_back(static_cast<std::int64_t>(d));
    return permute(view(t, front), all);
  };
  // Features, or batches, are grouped outermost.
  left = batchGroups > 1 ? regroup(left, {groups, batch / groups, feature}, {0, 1, 2})
                         : regroup(left, {batch, groups, input}, {1, 0, 2});
  right = regroup(right, {input, groups, output / groups}, {1, 0, 2});
  Convolution convolution(*this, windows, places);
  if (convolution.terms() > kMostTerms)
    unsupported(i, "a window of more than " + std::to_string(kMostTerms) + " positions");
  std::string y = convolution.from(0, left, right);
  Sizes merged{batch / batchGroups, output}, order(n + 2);
  merged.insert(merged.end(), places.begin(), places.end());
  order[at(dims.toBatch)] = 0;
  order[at(dims.toFeature)] = 1;
  for (std::size_t d = 0; d < n; ++d) order[at(dims.to[d])] = static_cast<std::int64_t>(d) + 2;
  y = permute(view(y, merged), order);
  graph.tensor(y).known = Known::kNothing;
  return nodeValue(i.shape, y);
}

Value Lowering::lowerReduceWindow(const Frame& frame, const Instruction& i) {
  if (i.operands.size() != 2) unsupported(i, "several operands, expected one");
  const Attribute* window = i.attribute("window");
  if (window == nullptr) unsupported(i, "no attribute 'window'");
  const std::vector<Window> windows = parseWindow(*window, file_);
  const Computation& combines = called(i, "to_apply");
  const Scalars& s = shared_.scalars;
  const Value& given = operand(frame, i, 0);
  if (addsExponentials(combines)) {
    const Value& first = operand(frame, i, 1);
    if (!first.isUniform() || first.table->values[0] != s.negativeInfinity())
      unsupported(i, "a first value that is not minus infinity");
    const std::string exponentials = graph.emit("exp", {node(given)}, {}, given.shape.sizes);
    const Value zero = tableValue(first.shape, uniformTable({}, shared_.scalars.rational(0)));
    const Value sum = windowValue(i, nodeValue(given.shape, exponentials), zero, "add", windows);
    return nodeValue(i.shape, graph.emit("log", {node(sum)}, {}, i.shape.sizes));
  }
  return windowValue(i, given, operand(frame, i, 1), binaryRegion(i, combines), windows);
}

Value Lowering::windowValue(const Instruction& i, const Value& x, const Value& start,
                            const std::string& region, const std::vector<Window>& windows) {
  const std::size_t n = x.shape.sizes.size();
  if (windows.size() != n) unsupported(i, "a window of other dimensions than its operand");
  // How often any other counts is not defined.
  if (!start.isUniform() || !isNeutral(region, x.shape.type, start.table->values[0]))
    unsupported(i, "a first value that is not neutral to '" + region + "'");
  Shape wide = x.shape, result = x.shape;
  std::vector<Sizes> padding;
  std::int64_t terms = 1;
  for (std::size_t d = 0; d < n; ++d) {
    const Window& w = windows[d];
    if (w.reversed) unsupported(i, "a window that is reversed");
    padding.push_back(paddingOf(w));
    wide.sizes[d] = paddedSize(w, x.shape.sizes[d]);
    result.sizes[d] = w.places(x.shape.sizes[d]);
    if (result.sizes[d] < 1) unsupported(i, "a window that has no place");
    terms = terms > kMostTerms ? terms : terms * w.size;
  }
  if (terms > kMostTerms)
    unsupported(i, "a window of more than " + std::to_string(kMostTerms) + " positions");
  expectShape(i, result.sizes);
  const Value padded = padValue(i, x, start, wide, padding);
  std::optional<Value> total;
  Sizes position(n, 0);
  for (std::int64_t k = 0; k < terms; ++k) {
    Sizes low(n), high(n), stride(n);
    for (std::size_t d = 0; d < n; ++d) {
      const Window& w = windows[d];
      low[d] = position[d] * w.dilation;
      high[d] = low[d] + (result.sizes[d] - 1) * w.stride + 1;
      stride[d] = w.stride;
    }
    const Value piece = sliceValue(padded, result, low, high, stride);
    total = total ? elementwise(i, region, {}, {*total, piece}) : piece;
    for (std::size_t d = n; d-- > 0 && ++position[d] == windows[d].size;) position[d] = 0;
  }
  total->shape = i.shape;
  return *total;
}

namespace {

// Consecutive places of a window along one dimension that have the same positions within the
// operand: [begin, end), positions [low, high).
struct Block {
  std::int64_t begin = 0, end = 0, low = 0, high = 0;
};

std::vector<Block> blocksOf(const Window& w, std::int64_t size, std::int64_t places) {
  std::vector<Block> blocks;
  for (std::int64_t p = 0; p < places; ++p) {
    const std::int64_t first = p * w.stride - w.low, low = std::max<std::int64_t>(0, -first),
                       high = std::min(w.size, size - first);
    if (!blocks.empty() && blocks.back().low == low && blocks.back().high == high)
      ++blocks.back().end;
    else blocks.push_back({p, p + 1, low, high});
  }
  return blocks;
}

// Goes through all combinations of numbers below these.
bool next(Sizes& number, const Sizes& below) {
  for (std::size_t d = number.size(); d-- > 0;) {
    if (++number[d] < below[d]) return true;
    number[d] = 0;
  }
  return false;
}

}  // namespace

// At each place of the window its greatest element, of equal ones the first, gets what the source
// has for that place: topk of 1 says which it is. Positions outside of the operand are none of the
// window's, so places near an edge choose among fewer and are treated for themselves.
Value Lowering::lowerSelectAndScatter(const Frame& frame, const Instruction& i) {
  if (i.operands.size() != 3) unsupported(i, "another number of operands, expected 3");
  const Attribute* window = i.attribute("window");
  if (window == nullptr) unsupported(i, "no attribute 'window'");
  std::vector<Window> windows = parseWindow(*window, file_);
  const Value &given = operand(frame, i, 0), &source = operand(frame, i, 1),
              &start = operand(frame, i, 2);
  const std::size_t n = given.shape.sizes.size();
  if (windows.size() != n) unsupported(i, "a window of other dimensions than its operand");
  expectShape(i, given.shape.sizes);
  if (binaryRegion(i, called(i, "scatter")) != "add")
    unsupported(i, "a computation 'scatter' that is not the sum of its parameters");
  if (!start.isUniform() || !shared_.scalars.is(start.table->values[0], 0))
    unsupported(i, "a first value that is not 0");
  const Computation& select = called(i, "select");
  const Instruction& root = select.instructions[select.root];
  const Attribute* direction = root.attribute("direction");
  const auto isParameter = [&](std::size_t k) {
    if (root.operands.size() != 2) return false;
    const Instruction& from = select.instructions[select.byName.at(root.operands[k].name)];
    return from.opcode == "parameter" && from.literal == std::to_string(k);
  };
  if (root.opcode != "compare" || direction == nullptr || !isParameter(0) || !isParameter(1) ||
      (direction->value != "GE" && direction->value != "LE"))
    unsupported(i, "a computation 'select' that is none of >=, <= of its two parameters");
  const bool greatest = direction->value == "GE";
  // What is put around it and never chosen, minus infinity, is around the window as well.
  std::vector<Sizes> around(n, Sizes{0, 0, 0});
  const Value* x = &given;
  const Instruction& made =
      frame.computation->instructions[frame.computation->byName.at(i.operands[0].name)];
  if (greatest && made.opcode == "pad") {
    const Value& fill = operand(frame, made, 1);
    const std::vector<Sizes> padding = paddingOfPad(frame, made);
    const bool outside = std::all_of(padding.begin(), padding.end(), [](const Sizes& p) {
      return p[0] >= 0 && p[1] >= 0 && p[2] == 0;
    });
    if (outside && fill.isUniform() &&
        fill.table->values[0] == shared_.scalars.negativeInfinity()) {
      around = padding;
      x = &operand(frame, made, 0);
    }
  }
  const Sizes& sizes = x->shape.sizes;
  Sizes places, blockCounts;
  std::vector<std::vector<Block>> blocks;
  std::int64_t terms = 1;
  for (std::size_t d = 0; d < n; ++d) {
    Window& w = windows[d];
    if (w.reversed || w.baseDilation != 1 || w.dilation != 1) unsupported(i, "a window with gaps");
    w.low += around[d][0];
    w.high += around[d][1];
    places.push_back(w.places(sizes[d]));
    if (places.back() < 1) unsupported(i, "a window that has no place");
    blocks.push_back(blocksOf(w, sizes[d], places.back()));
    std::int64_t positions = 0;
    for (const Block& b : blocks.back()) {
      if (b.low >= b.high) unsupported(i, "a window that is outside of the operand");
      positions += b.high - b.low;
    }
    blockCounts.push_back(static_cast<std::int64_t>(blocks.back().size()));
    terms = terms > kMostTerms ? terms : terms * positions;
  }
  if (terms > kMostTerms)
    unsupported(i, "a window of more than " + std::to_string(kMostTerms) + " positions");
  if (source.shape.sizes != places) unsupported(i, "a source of other sizes than there are places");
  const std::string from = node(*x), passed = node(source);
  const Value zero = tableValue({}, uniformTable({}, shared_.scalars.rational(0)));
  std::string total;
  Sizes which(n, 0);
  do {
    Sizes own, counts;  // places and positions of this block
    std::string mine = passed;
    for (std::size_t d = 0; d < n; ++d) {
      const Block& b = blocks[d][at(which[d])];
      own.push_back(b.end - b.begin);
      counts.push_back(b.high - b.low);
      mine = sliceDim(mine, d, b.begin, b.end);
    }
    // Where position `offset` of the first place is.
    const auto first = [&](std::size_t d, std::int64_t offset) {
      const Block& b = blocks[d][at(which[d])];
      return b.begin * windows[d].stride - windows[d].low + b.low + offset;
    };
    Sizes one = own, wide = own, offset(n, 0);
    one.push_back(1);
    std::vector<std::string> pieces;
    do {
      std::string piece = from;
      for (std::size_t d = 0; d < n; ++d) {
        const std::int64_t low = first(d, offset[d]), stride = windows[d].stride;
        piece = sliceDim(piece, d, low, low + (own[d] - 1) * stride + 1, stride);
      }
      pieces.push_back(view(piece, one));
    } while (next(offset, counts));
    const std::int64_t count = static_cast<std::int64_t>(pieces.size());
    wide.push_back(count);
    const std::string chosen = ordered(cat(pieces, n), n, 1, greatest).second;
    const std::string rows = view(oneHot(chosen, 0, count), wide);
    const std::string parts = onlyIf(rows, view(mine, one), wide);
    Shape small = i.shape, whole = i.shape;
    small.sizes = own;
    whole.sizes = sizes;
    for (std::int64_t k = 0; k < count; ++k) {
      std::vector<Sizes> padding;
      for (std::size_t d = 0; d < n; ++d) {
        const std::int64_t low = first(d, offset[d]), stride = windows[d].stride;
        padding.push_back({low, sizes[d] - low - (own[d] - 1) * stride - 1, stride - 1});
      }
      const Value part = nodeValue(small, view(sliceDim(parts, n, k, k + 1), own));
      const std::string placed = node(padValue(i, part, zero, whole, padding));
      total = total.empty() ? placed : binary("add", total, placed, sizes);
      next(offset, counts);
    }
  } while (next(which, blockCounts));
  Shape inner = i.shape;
  inner.sizes = sizes;
  return padValue(i, nodeValue(inner, total), zero, i.shape, around);
}

}  // namespace shardproof::hlo
