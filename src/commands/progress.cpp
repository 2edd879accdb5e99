// SPDX-License-Identifier: Apache-2.0
#include "commands/progress.h"

#include <unistd.h>

#include <algorithm>

#include "commands/streams.h"
#include "report/format.h"

namespace shardproof {
namespace {

constexpr auto kBetweenUpdates = std::chrono::milliseconds(100);
constexpr auto kBetweenLogLines = std::chrono::seconds(30);

void put(const std::string& text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0)
    return;  // a lost progress line is no loss
}

}  // namespace

Progress::Progress(bool wanted) : enabled_(wanted), terminal_(isTerminal(STDERR_FILENO)) {}

void Progress::update(std::size_t done, std::size_t all, const char* doing) {
  if (!enabled_) return;
  const auto now = Clock::now();
  if (!terminal_) {
    if (now - last_ < kBetweenLogLines) return;
    last_ = now;
    put(logLine(std::chrono::duration<double>(now - start_).count(), done, all, doing));
    return;
  }
  if (shown_ && now - last_ < kBetweenUpdates) return;
  last_ = now;
  shown_ = true;
  put(std::string("\r")
          .append(line(done, all, doing, terminalWidth(STDERR_FILENO) - 1))
          .append("\x1b[K"));
}

void Progress::clear() {
  if (shown_) put("\r\x1b[K");
  shown_ = false;
}

std::string Progress::line(std::size_t done, std::size_t all, const char* doing,
                           std::size_t width) {
  std::string text;
  if (all > 0) {
    constexpr std::size_t kBar = 24;
    done = std::min(done, all);
    const std::size_t filled = done * kBar / all;
    const std::string total = std::to_string(all), now = std::to_string(done);
    text.append("[").append(filled, '#').append(kBar - filled, '.').append("] ");
    text.append(total.size() - now.size(), ' ').append(now).append("/").append(total).append(" ");
  }
  text += doing;
  return text.substr(0, width);
}

std::string Progress::logLine(double elapsed, std::size_t done, std::size_t all,
                              const char* doing) {
  std::string text = "shardproof: " + seconds(elapsed) + ": " + doing;
  if (all > 0) text += ", " + std::to_string(std::min(done, all)) + " of " + std::to_string(all);
  return text + "\n";
}

}  // namespace shardproof
