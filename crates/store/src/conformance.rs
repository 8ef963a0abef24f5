//! The contract of [`Store`], as test cases that every store must pass.
//!
//! Each case is a small function that gets a fresh store and uses it through the trait only. A failure names the case
//! and the store.

mod accept;
mod cut;
mod dead_letter;
mod derived;
mod document;
mod endpoint;
mod erasure;
mod fixture;
pub mod histories;
mod idempotency;
mod job;
mod journal;
mod page;
mod replay;
mod retention;
mod session;
mod settle;

use std::pin::Pin;

use crate::Store;
use fixture::StoreCase;
use posthaste_crypto::master::{MasterKey, Masters};

/// Boxes a future without placing it on the caller's stack first.
fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::pin(make())
}

/// Runs every case, each on a new store from `make`, and returns the number of cases. A store is dropped before the next
/// is made.
///
/// # Panics
/// If the store breaks the contract.
pub async fn run<S: Store>(make: impl AsyncFn() -> S) -> usize {
    let mut cases = 0;
    macro_rules! cases {
        ($($file:ident: $($case:ident)*;)*) => {
            $($({
                // Boxed, because one future with all cases would not fit on the stack.
                let store = make().await;
                let case = boxed(|| StoreCase::begin(stringify!($case), store)).await;
                boxed(|| $file::$case(&case)).await;
                cases += 1;
            })*)*
        };
    }
    cases! {
        session:
            a_new_store_is_empty
            each_session_has_higher_numbers_than_the_last
            a_newer_session_fences_the_older
            pauses_are_known_at_the_start
            a_pause_replaces_the_one_before
            a_dead_head_pauses_its_lane_with_its_settle
            a_stale_settle_pauses_nothing
            stored_breakers_are_known_at_the_start
            stored_breakers_replace_the_earlier_set;
        accept:
            a_message_comes_back_byte_for_byte
            a_delivery_comes_back_as_it_was_accepted
            accepted_deliveries_arrive_once_in_commit_order
            accept_whose_caller_has_gone_still_arrives
            a_fenced_accept_leaves_nothing
            message_without_deliveries_is_stored_and_yields_no_arrival
            large_messages_without_deliveries_do_not_fill_the_arrival_queue
            newer_delivery_supersedes_the_waiting_one_in_any_place
            deliveries_of_other_lanes_and_keys_are_not_superseded
            last_of_several_in_one_accept_supersedes_the_others
            superseded_delivery_keeps_its_attempts_and_a_late_settle_is_stale
            ended_delivery_is_not_superseded
            delivery_that_was_put_back_can_still_be_superseded
            duplicate_request_supersedes_nothing;
        idempotency:
            repeated_key_gets_the_first_answer_and_stores_nothing
            first_of_equal_keys_in_one_accept_is_fresh
            exactly_one_of_concurrent_calls_with_one_key_is_fresh
            a_key_for_another_request_is_refused
            key_is_remembered_for_a_day_across_midnight
            same_key_of_two_tenants_is_two_keys
            key_outlives_its_session_and_a_refused_call_stores_none
            large_duplicates_do_not_fill_the_arrival_queue
            an_endpoint_is_made_once_under_one_key;
        settle:
            every_end_is_read_back_with_its_attempt
            end_without_an_attempt_is_stored_without_one
            excerpt_is_stored_with_its_attempt
            retry_keeps_all_its_fields
            a_delivery_waits_for_its_receipt
            attempts_are_shown_in_the_order_they_were_made
            settle_with_a_different_attempt_count_is_stale
            a_settle_of_another_epoch_is_stale
            repeated_settle_adds_no_attempt
            ended_delivery_keeps_its_final_state
            settle_of_an_unknown_delivery_is_stale
            settlements_of_one_batch_are_independent
            a_row_moves_to_the_place_it_is_settled_in
            spilled_rows_are_read_by_queue
            message_lists_its_own_deliveries_pending_and_ended;
        page:
            left_rows_are_ready_ones_of_earlier_writers_by_id
            delayed_rows_come_by_due_time_then_id
            next_due_time_is_after_the_requested_time
            spilled_rows_come_oldest_first
            spilled_rows_come_newest_first_on_request
            a_strict_lane_is_one_queue_over_all_tiers
            row_is_found_by_id_while_pending
            spilled_queues_are_known_at_the_start;
        cut:
            lane_cut_ends_deliveries_up_to_its_id
            message_cut_ends_only_its_deliveries
            deliveries_in_flight_are_spared_until_the_next_start
            spared_delivery_that_ended_does_not_lower_the_count
            second_cut_extends_the_first_with_its_own_cause_and_time
            gone_endpoint_overrides_the_cause_of_an_earlier_lane_cut
            removed_cut_ends_nothing
            a_gone_endpoint_is_marked_by_its_cut
            cuts_are_known_at_the_start
            a_delivery_past_its_ttl_reads_as_expired_at_once
            delivery_awaiting_its_receipt_does_not_expire
            rows_of_a_lane_are_swept_in_any_place
            rows_of_a_message_are_swept_by_its_key
            deliveries_in_flight_are_not_swept
            rows_past_their_ttl_are_swept
            sweep_ends_a_bounded_number_and_continues
            sweep_of_a_gone_endpoint_files_dead_letters
            a_fenced_sweep_ends_nothing;
        dead_letter:
            only_a_dead_end_files_a_dead_letter
            dead_letters_are_found_by_every_filter
            dead_letters_of_all_tenants_are_found_by_every_filter
            list_continues_after_each_page_in_both_orders
            small_purge_is_immediate_and_spares_later_dead_letters
            a_large_purge_hides_at_once_and_is_swept_in_steps
            count_stops_at_its_bound_and_says_at_least;
        job:
            a_large_fan_out_is_accepted_as_one_job
            chunk_is_applied_once_with_its_cursor
            message_lists_deliveries_made_by_its_job
            cut_ends_a_fan_out_and_its_deliveries
            a_job_is_paused_resumed_and_cancelled
            each_dead_letter_is_replayed_once
            listed_replay_takes_dead_and_expired_deliveries
            a_replay_under_a_key_begins_once
            purged_and_cut_deliveries_are_not_replayed
            a_fenced_session_spreads_nothing
            endpoints_of_a_tenant_are_read_in_pages;
        replay:
            replay_takes_expired_deliveries_and_on_request_dead_ones
            expired_deliveries_are_found_by_every_filter
            expired_delivery_without_a_payload_is_skipped
            endpoint_gets_each_missing_message_once
            dry_run_returns_items_and_starts_nothing;
        retention:
            payload_is_deleted_after_a_week_and_history_after_a_month
            a_payload_stays_while_a_delivery_or_a_dead_letter_needs_it
            delivery_pending_for_a_month_is_given_up
            retention_runs_in_small_steps
            ended_jobs_are_deleted_and_running_ones_kept
            deletions_are_recorded_in_the_journal
            journal_rows_are_kept_until_they_expire
            younger_outcome_is_deleted_once_expired_after_an_older_one
            data_of_each_tenant_is_kept_for_its_own_retention_time
            outcomes_of_an_erased_endpoint_follow_the_tenants_retention
            pending_delivery_is_given_up_after_its_tenants_retention_time
            changed_override_applies_to_existing_data
            messages_with_a_longer_override_are_skipped_in_small_steps
            needed_payload_outlives_every_retention_time
            override_of_some_tenants_does_not_change_others
            overrides_outlive_their_session
            overrides_are_recorded_in_the_journal;
        derived:
            an_endpoint_s_history_comes_newest_first_in_pages
            history_shows_states_and_can_be_filtered
            messages_are_found_by_subject_and_correlation
            messages_are_listed_by_every_filter_in_pages
            deliveries_are_listed_by_message_by_tenant_and_for_all_tenants
            events_are_counted_by_tenant_and_hour
            lane_reports_its_pending_deliveries;
        journal:
            journal_records_all_changes_of_a_delivery
            journal_has_fingerprints_of_payloads_and_subjects
            journal_rows_are_linked_and_match_their_roots
            stale_settle_writes_only_its_attempt
            changes_are_in_the_journal_with_their_api_key
            retry_now_is_in_the_journal_with_its_api_key
            replay_and_purge_are_in_the_journal_with_their_api_key
            checkpoint_covers_the_last_row
            rows_already_covered_are_not_signed_again
            sign_now_covers_the_current_last_row
            fenced_session_signs_nothing;
        endpoint:
            an_endpoint_comes_back_with_every_field
            a_changed_endpoint_is_seen_at_once
            change_of_an_outdated_version_is_refused
            change_of_an_endpoint_whose_subject_was_erased_is_stale
            an_endpoint_is_disabled_by_the_answer_that_asks_for_it
            secret_display_and_rotation_are_in_the_journal
            endpoints_of_one_or_all_tenants_are_listed_in_both_orders
            uid_is_unique_within_its_tenant
            tombstone_of_a_deleted_endpoint_keeps_its_tenant
            a_tenant_s_endpoints_come_by_id
            lanes_come_in_the_order_they_are_asked_for
            an_unknown_policy_reads_as_the_default
            endpoints_match_by_subject_by_tag_and_by_both
            matches_come_by_id_in_pages
            changed_endpoint_matches_by_its_new_fields
            an_endpoint_that_was_deleted_or_erased_matches_nothing
            cached_list_includes_later_changes;
        document:
            a_document_comes_back_as_it_was_filed
            a_name_belongs_to_one_document
            documents_come_by_id_in_pages
            a_removed_document_is_gone_and_its_name_is_free
            a_document_is_filed_once_under_a_key
            fenced_session_files_nothing;
        erasure:
            erased_data_cannot_be_read_and_other_data_can
            nothing_of_an_erased_subject_remains
            data_accepted_after_an_erasure_is_kept
            erasure_waits_for_deliveries_in_flight
            erasure_waits_for_ended_deliveries_still_in_flight
            key_whose_answer_was_erased_is_fresh_again
            subject_is_erased_with_its_endpoints
            tenant_is_erased_with_all_its_data
            erasure_records_its_announcement_and_its_end
            export_is_recorded_in_the_journal
            erasing_an_unknown_subject_succeeds
            a_large_fan_out_is_erased_in_small_steps
            fenced_session_erases_nothing;
    }
    cases
}

/// The master key of stores in tests.
pub fn master_key_of_tests() -> Masters {
    let key = MasterKey::parse("eTCMQLiQ1WZ3aITDlrR/+iyAzDYqPegWJRe4Ws+PyBg=");
    Masters::new(key.expect("32 random bytes"))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::run;
    use crate::memory::MemoryStore;
    use crate::sqlite::Sqlite;

    #[tokio::test]
    async fn the_memory_store_keeps_the_contract() {
        run(async || MemoryStore::default()).await;
    }

    #[tokio::test]
    async fn the_sqlite_store_keeps_the_contract() {
        // Each store reserves room on the disk, so only one folder is kept at a time.
        let folder = RefCell::new(None);
        run(async || {
            let fresh = tempfile::tempdir().expect("a temporary folder");
            let store = Sqlite::open_folder(fresh.path(), crate::conformance::master_key_of_tests());
            folder.replace(Some(fresh));
            store.expect("a fresh folder opens")
        })
        .await;
    }
}
