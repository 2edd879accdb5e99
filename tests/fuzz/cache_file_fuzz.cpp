// SPDX-License-Identifier: Apache-2.0
// A proof cache that someone has damaged or made up. Either the whole file, or - SQLite would
// notice most of that - the fields of its rows, which are what the bytes are taken for unless they
// begin like a database.
#include <fuzzer/FuzzedDataProvider.h>
#include <sqlite3.h>
#include <zlib.h>

#include <filesystem>
#include <string>

#include "cache/cache_file.h"
#include "cache/sqlite.h"
#include "fuzz_support.h"
#include "stages/canonical_reader.h"

using namespace shardproof;

namespace {

std::string rows(const std::uint8_t* data, std::size_t size) {
  const std::string file = fuzz::writeInput("rows.db", "");
  { CacheFile made(file, sqlite::Access::kCreate); }
  FuzzedDataProvider draw(data, size);
  sqlite::Database database(file, sqlite::Access::kWrite, 0);
  sqlite::Transaction transaction(database);
  for (int n = draw.ConsumeIntegralInRange<int>(0, 3); n >= 0; --n) {
    sqlite::Statement insert(
        database,
        "INSERT INTO proofs (digest, version, checker, method, form, form_length, shapes, "
        "check_sum, created, used, hits) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    const std::string version =
        draw.ConsumeBool() ? proofVersion() : draw.ConsumeRandomLengthString(20);
    const auto checker = draw.ConsumeIntegral<std::int8_t>() / 32,
               method = draw.ConsumeIntegral<std::int8_t>() / 16;
    const std::string shapes = draw.ConsumeRandomLengthString(40),
                      plain = draw.ConsumeRandomLengthString(100);
    std::string form = plain;
    if (draw.ConsumeBool()) {
      uLongf length = compressBound(plain.size());
      form.resize(length);
      compress2(reinterpret_cast<Bytef*>(form.data()), &length,
                reinterpret_cast<const Bytef*>(plain.data()), plain.size(), 1);
      form.resize(length);
    }
    // With the right check sums, as a forger would have them, or with any.
    const bool right = draw.ConsumeBool();
    const std::string head = version + "\n" + std::to_string(checker) + "\n" +
                             std::to_string(method) + "\n" + std::to_string(shapes.size()) + "\n" +
                             shapes + plain;
    const auto sum = [](const std::string& text) {
      return static_cast<std::int64_t>(
          crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
    };
    insert.bind(1, right ? sum(plain) : draw.ConsumeIntegral<std::int64_t>())
        .bindText(2, version)
        .bind(3, checker)
        .bind(4, method)
        .bindBlob(5, form);
    insert
        .bind(6, right ? static_cast<std::int64_t>(plain.size())
                       : draw.ConsumeIntegral<std::int64_t>())
        .bindText(7, shapes);
    insert.bind(8, right ? sum(head) : draw.ConsumeIntegral<std::int64_t>())
        .bind(9, draw.ConsumeIntegral<std::int64_t>());
    insert.bind(10, draw.ConsumeIntegral<std::int64_t>())
        .bind(11, draw.ConsumeIntegral<std::int8_t>())
        .run();
  }
  transaction.commit();
  return file;
}

void use(const std::string& path) {
  try {
    CacheFile file(path, sqlite::Access::kWrite, 0);
    file.statistics();
    for (const std::int64_t id : file.ids(proofVersion())) {
      const CacheRow row = file.row(id).value();
      const auto found = file.find(row.form, row.checker);
      fuzz::require(found.id < 0 || isProof(found.proof.method, row.checker),
                    "what is found is a proof that the checker may have made");
      if (row.sound) file.write({{row.form + "x", row.checker, row.proof}}, {id});
    }
    const PruneResult pruned = file.prune({.maxBytes = 30'000, .olderThanDays = 1.0});
    for (const std::int64_t id : file.ids(proofVersion()))
      fuzz::require(file.row(id).value().sound, "damaged rows do not outlive prune",
                    std::to_string(pruned.left));
  } catch (const CacheError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string file =
      bytes.starts_with("SQLite format 3") ? fuzz::writeInput("cache.db", bytes) : rows(data, size);
  use(file);
  std::filesystem::remove(file);
  std::filesystem::remove(file + "-journal");
  return 0;
}
