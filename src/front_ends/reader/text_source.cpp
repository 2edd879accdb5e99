// SPDX-License-Identifier: Apache-2.0
#include "reader/text_source.h"

#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "shardproof/error.h"

namespace shardproof::reader {

namespace {
constexpr std::size_t kChunk = 256 * 1024;
}

void TextSource::Close::operator()(gzFile_s* handle) const { gzclose_r(handle); }

void TextSource::fail(const std::string& message) const { throw InputError(file_, "", message); }

TextSource::TextSource(const Input& input) : file_(input.name), text_(input.text) {
  if (text_) return;
  compressed_ = file_.ends_with(".gz");
  buffer_.resize(kChunk);
  errno = 0;
  handle_.reset(gzopen(file_.c_str(), "rb"));
  if (!handle_) {
    if (errno == 0 || errno == ENOMEM) throw std::bad_alloc();
    fail(std::string("cannot open the file: ") + std::strerror(errno));
  }
  gzbuffer(handle_.get(), kChunk);
}

bool TextSource::refill() {
  if (text_) {
    next_ = text_->data();
    end_ = next_ + text_->size();
    refuseNul();
    digest_.update(*text_);
    text_ = std::string_view();  // given out once
    return next_ != end_;
  }
  errno = 0;
  const int got = gzread(handle_.get(), buffer_.data(), static_cast<unsigned>(buffer_.size()));
  const int systemError = errno;
  const std::string where = " after " + std::to_string(bytesRead_) + " bytes of text";
  if (got < 0) {
    int code = Z_OK;
    const char* reason = gzerror(handle_.get(), &code);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    fail("cannot read the file" + where + ": " +
         (code == Z_ERRNO ? std::strerror(systemError) : reason));
  }
  // zlib passes text through that is not compressed at all, and gunzips whatever looks like gzip:
  // the name decides here.
  if (bytesRead_ == 0 && got > 0 && (gzdirect(handle_.get()) == 0) != compressed_) {
    fail(compressed_ ? "the name ends in .gz, but the content is not gzip data"
                     : "found gzip data, expected JSON text (or a name that ends in .gz)");
  }
  if (got == 0) {
    // A stream that just stops is not an error for gzread, only for gzerror.
    int code = Z_OK;
    gzerror(handle_.get(), &code);
    if (code == Z_BUF_ERROR) fail("the gzip data is cut off" + where);
    return false;
  }
  next_ = buffer_.data();
  end_ = next_ + got;
  refuseNul();
  bytesRead_ += static_cast<std::size_t>(got);
  digest_.update({buffer_.data(), static_cast<std::size_t>(got)});
  return true;
}

// Parsers of text take it for the end, and would neither read nor refuse what comes after.
void TextSource::refuseNul() const {
  if (next_ == end_) return;
  const void* const nul = std::memchr(next_, 0, static_cast<std::size_t>(end_ - next_));
  if (nul != nullptr)
    fail("found a NUL byte after " +
         std::to_string(bytesRead_ +
                        static_cast<std::size_t>(static_cast<const char*>(nul) - next_)) +
         " bytes of text, expected JSON or HLO text");
}

}  // namespace shardproof::reader
