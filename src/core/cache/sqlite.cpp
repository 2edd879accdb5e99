// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite.h"

#include <sqlite3.h>

namespace shardproof::sqlite {

namespace {

[[noreturn]] void fail(sqlite3* handle, int code) {
  const int primary = code & 0xFF;
  const auto kind = primary == SQLITE_NOTADB || primary == SQLITE_CORRUPT ? Error::Kind::kDamaged
                    : primary == SQLITE_BUSY || primary == SQLITE_LOCKED  ? Error::Kind::kLocked
                                                                          : Error::Kind::kOther;
  throw Error(kind, handle ? sqlite3_errmsg(handle) : sqlite3_errstr(code));
}

}  // namespace

void Database::Close::operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }

Database::Database(const std::string& file, Access access, int busyMilliseconds) {
  const int flags = access == Access::kRead    ? SQLITE_OPEN_READONLY
                    : access == Access::kWrite ? SQLITE_OPEN_READWRITE
                                               : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(file.c_str(), &handle, flags, nullptr);
  handle_.reset(handle);  // there is one even when opening failed
  if (code != SQLITE_OK) fail(handle, code);
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, busyMilliseconds);
  // A file from elsewhere may hold triggers and views; none of ours does.
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  execute("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON");
}

void Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(handle_.get(), code);
}

std::int64_t Database::integer(const std::string& sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

int Database::changes() const { return sqlite3_changes(handle_.get()); }

void Statement::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

Statement::Statement(const Database& database, const std::string& sql) : database_(&database) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(database.handle(), sql.c_str(), static_cast<int>(sql.size()),
                                      &statement, nullptr);
  if (code != SQLITE_OK) fail(database.handle(), code);
  statement_.reset(statement);
}

Statement& Statement::bind(int index, std::int64_t value) {
  if (const int code = sqlite3_bind_int64(statement_.get(), index, value); code != SQLITE_OK)
    fail(database_->handle(), code);
  return *this;
}

Statement& Statement::bindText(int index, std::string_view text) {
  if (const int code = sqlite3_bind_text64(statement_.get(), index, text.data(), text.size(),
                                           SQLITE_STATIC, SQLITE_UTF8);
      code != SQLITE_OK)
    fail(database_->handle(), code);
  return *this;
}

Statement& Statement::bindBlob(int index, std::string_view bytes) {
  // A null pointer would be bound as NULL, not as an empty blob.
  const char* data = bytes.empty() ? "" : bytes.data();
  if (const int code =
          sqlite3_bind_blob64(statement_.get(), index, data, bytes.size(), SQLITE_STATIC);
      code != SQLITE_OK)
    fail(database_->handle(), code);
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  // The message is read before the reset, which may change it.
  try {
    fail(database_->handle(), code);
  } catch (const Error&) {
    sqlite3_reset(statement_.get());
    throw;
  }
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string_view Statement::bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return data ? std::string_view(static_cast<const char*>(data), static_cast<std::size_t>(size))
              : std::string_view();
}

Transaction::~Transaction() {
  if (done_) return;
  // Some errors have rolled it back already.
  sqlite3_exec(database_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
}

}  // namespace shardproof::sqlite
