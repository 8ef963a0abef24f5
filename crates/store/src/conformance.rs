//! The contract of [`Store`], as cases that every store passes.
//!
//! Each case is a small function with a fresh store of its own and speaks to it through the trait
//! alone. A failure names the case and the store.

mod accept;
mod agreed;
mod breaker;
mod checkpoint;
mod collapse;
mod cut;
mod dead_letter;
mod derived;
mod document;
mod endpoint;
mod endpoint_matching;
mod erasure;
mod fixture;
pub mod histories;
mod idempotency;
mod job;
mod journal;
mod page;
mod pause;
mod replay;
mod retention;
mod session;
mod settle;
mod sweep;
mod ttl;

use std::pin::Pin;

use crate::Store;
use fixture::Case;
use posthaste_crypto::master::{MasterKey, Masters};

/// A future that never was on its caller's stack.
fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::pin(make())
}

/// Runs every case, each on a store that `make` has made for it; how many there are.
///
/// # Panics
/// When the store breaks the contract.
pub async fn run<S: Store>(make: impl AsyncFn() -> S) -> usize {
    let mut cases = 0;
    macro_rules! cases {
        ($($file:ident: $($case:ident)*;)*) => {
            $($(
                // In boxes: all of them in one future would be more than a stack holds.
                let store = make().await;
                let case = boxed(|| Case::begin(stringify!($case), store)).await;
                boxed(|| $file::$case(&case)).await;
                cases += 1;
            )*)*
        };
    }
    cases! {
        session:
            a_new_store_is_empty
            every_session_has_numbers_of_its_own
            a_newer_session_fences_the_older;
        accept:
            a_message_comes_back_byte_for_byte
            a_delivery_comes_back_as_it_was_accepted
            what_is_accepted_arrives_once_in_the_order_of_its_commits
            an_accept_nobody_waits_for_still_arrives
            a_fenced_accept_leaves_nothing
            a_message_for_nobody_is_kept_and_arrives_nowhere
            large_messages_for_nobody_never_fill_the_way_to_the_loop;
        idempotency:
            a_key_again_gives_the_first_answer_and_leaves_nothing
            of_twins_in_one_accept_the_first_is_new
            of_twins_at_once_one_is_new_and_all_get_its_answer
            a_key_for_another_request_is_refused
            a_key_is_known_for_a_day_whatever_midnights_lie_between
            a_key_is_a_tenant_s_own
            a_key_outlives_its_session_and_a_refused_call_uses_none
            large_duplicates_never_fill_the_way_to_the_loop
            an_endpoint_is_made_once_under_one_key;
        collapse:
            the_newer_takes_the_place_of_the_one_that_waits_wherever_it_is
            other_lanes_other_keys_and_no_keys_are_left_alone
            of_several_in_one_accept_the_last_stays
            what_was_tried_keeps_its_attempts_and_a_late_settle_is_stale
            what_has_ended_is_not_ended_again
            a_retried_delivery_can_still_be_replaced
            a_duplicate_takes_nobody_s_place;
        settle:
            every_end_comes_back_with_the_attempt_that_led_to_it
            an_end_without_an_attempt_is_kept_as_one
            how_an_answer_began_is_kept_with_its_attempt
            a_retry_waits_with_all_it_needs
            a_delivery_waits_for_its_receipt
            attempts_are_shown_in_the_order_they_were_made
            a_settle_that_counts_other_attempts_is_stale
            a_settle_of_another_epoch_is_stale
            a_settle_made_again_is_no_other_attempt
            what_has_ended_stays_as_it_ended
            an_unknown_delivery_is_stale
            every_settlement_stands_for_itself
            a_row_moves_to_the_place_it_is_settled_in
            spilled_rows_move_behind_their_window
            a_message_s_deliveries_are_its_own_pending_or_ended;
        page:
            left_rows_are_ready_ones_of_earlier_writers_by_id
            delayed_rows_come_by_due_time_then_id
            the_next_due_time_lies_beyond_what_was_asked_for
            spilled_rows_come_oldest_first
            spilled_rows_come_newest_first_where_asked
            a_strict_lane_is_one_queue_over_all_tiers
            one_row_is_found_while_it_is_pending
            spilled_queues_are_known_at_the_start;
        cut:
            a_lane_s_cut_ends_what_is_at_or_below_it
            a_message_s_cut_ends_its_deliveries_alone
            what_was_in_flight_is_spared_until_the_next_start
            what_was_spared_and_has_ended_does_not_lower_the_count
            a_second_cut_reaches_further_with_its_own_cause_and_time
            an_endpoint_s_end_is_what_its_lane_s_cut_says_from_then_on
            a_forgotten_cut_ends_nothing_any_more
            a_gone_endpoint_is_marked_by_its_cut
            cuts_are_known_at_the_start;
        dead_letter:
            a_dead_end_files_a_letter_and_no_other_end_does
            dead_letters_are_found_by_every_filter
            everybodys_dead_letters_are_one_list_found_by_every_filter
            a_list_goes_on_where_its_page_ended_in_both_orders
            a_small_purge_is_done_at_once_and_spares_what_dies_later
            a_large_purge_hides_at_once_and_is_swept_in_steps
            counting_stops_and_says_so;
        job:
            a_large_fan_out_is_accepted_as_one_job
            a_chunk_is_made_once_with_its_cursor
            a_message_finds_what_its_job_made
            a_cut_message_gets_no_more_and_its_chunks_end
            a_job_is_paused_resumed_and_cancelled
            a_replay_gives_each_dead_letter_one_next_life
            a_replay_of_a_list_takes_what_is_dead_or_expired
            a_replay_under_a_key_begins_once
            what_is_purged_or_cut_is_not_replayed
            a_fenced_session_spreads_nothing
            a_tenant_s_endpoints_are_walked_in_pages;
        replay:
            a_replay_takes_what_has_expired_and_with_it_what_is_dead
            what_has_expired_is_found_by_every_filter
            what_expired_longer_ago_than_payloads_are_kept_is_passed_over
            an_endpoint_gets_each_message_it_was_missing_once
            what_would_be_replayed_is_known_before;
        retention:
            a_finished_payload_goes_after_a_week_and_its_history_after_a_month
            a_payload_stays_while_a_delivery_or_a_dead_letter_needs_it
            what_waited_for_a_month_is_given_up
            a_run_goes_in_small_steps
            ended_jobs_go_and_running_ones_stay
            what_goes_is_told_in_the_journal
            what_was_done_stays_in_the_journal_until_it_is_old
            a_young_outcome_goes_in_its_turn_after_an_older_one_went;
        agreed:
            each_tenant_s_things_are_kept_as_was_agreed_with_it
            outcomes_of_an_erased_subjects_endpoint_go_in_the_tenants_time
            what_waits_is_given_up_after_its_tenant_s_time
            a_change_holds_for_what_is_there_already
            who_keeps_for_longer_is_passed_over_in_small_steps
            what_is_needed_outlives_every_time
            what_is_agreed_with_some_leaves_others_alone
            what_was_agreed_outlives_its_session
            what_is_agreed_is_told_in_the_journal;
        pause:
            pauses_are_known_at_the_start
            a_pause_replaces_the_one_before
            a_dead_head_pauses_its_lane_with_its_settle
            a_stale_settle_pauses_nothing;
        breaker:
            remembered_breakers_are_known_at_the_start
            what_is_remembered_replaces_all_before;
        ttl:
            a_delivery_past_its_ttl_reads_as_expired_at_once
            what_was_sent_does_not_expire;
        sweep:
            a_lane_s_rows_are_swept_wherever_they_are
            a_message_s_rows_are_swept_by_its_key
            what_its_owner_has_under_way_is_left
            rows_past_their_ttl_are_swept
            a_sweep_ends_a_bounded_number_and_goes_on
            the_end_of_an_endpoint_is_filed_with_its_rows
            a_fenced_sweep_ends_nothing;
        derived:
            an_endpoint_s_history_comes_newest_first_in_pages
            a_history_shows_what_became_of_deliveries_and_can_be_filtered
            messages_are_found_by_subject_and_correlation
            messages_are_listed_by_every_filter_in_pages
            deliveries_are_listed_by_message_tenant_and_for_everybody
            what_happens_is_counted_by_tenant_and_hour
            a_lane_says_how_much_is_pending_in_it;
        journal:
            the_journal_tells_a_delivery_s_whole_life
            the_journal_marks_payloads_and_subjects
            the_journal_s_rows_are_linked_and_sound
            what_takes_no_effect_leaves_no_entry_but_its_attempt
            what_somebody_does_is_in_the_journal
            a_delivery_that_is_hurried_says_who_wanted_it
            a_replay_and_a_purge_say_who_wanted_them;
        checkpoint:
            a_checkpoint_says_how_the_journal_ended
            what_is_signed_for_is_not_signed_for_again
            whoever_asks_gets_the_end_of_this_moment_signed
            who_is_fenced_signs_for_nothing;
        endpoint:
            an_endpoint_comes_back_with_every_field
            a_changed_endpoint_is_seen_at_once
            a_change_of_what_has_changed_since_is_refused
            change_of_an_endpoint_whose_subject_was_erased_is_stale
            an_endpoint_is_disabled_by_the_answer_that_asks_for_it
            what_is_done_with_secrets_is_in_the_journal
            endpoints_are_listed_in_both_orders_of_one_or_of_all
            an_endpoint_is_found_by_its_uid_alone_among_its_tenant_s
            what_is_left_of_a_deleted_endpoint_says_whose_it_was
            a_tenant_s_endpoints_come_by_id
            lanes_come_in_the_order_they_are_asked_for
            an_unknown_policy_reads_as_the_default;
        endpoint_matching:
            endpoints_match_by_subject_by_tag_and_by_both
            matches_come_by_id_in_pages_that_say_where_the_next_begins
            a_changed_endpoint_matches_what_it_says_now
            an_endpoint_that_was_deleted_or_erased_matches_nothing
            a_list_that_was_read_has_every_change_made_since;
        document:
            a_document_comes_back_as_it_was_filed
            a_name_belongs_to_one_document
            documents_come_by_id_in_pages
            a_removed_document_is_gone_and_its_name_is_free
            a_document_is_filed_once_under_a_key
            who_is_fenced_files_nothing;
        erasure:
            what_is_erased_cannot_be_read_and_the_rest_can
            nothing_is_left_of_whom_is_erased
            what_is_accepted_after_an_erasure_is_new
            what_is_under_way_is_left_until_it_has_ended
            what_has_ended_and_is_still_being_sent_is_left_as_well
            a_key_whose_answer_was_erased_is_new_again
            a_subject_goes_with_its_endpoints
            a_tenant_goes_with_all_it_has
            an_erasure_is_announced_and_its_end_is_told
            who_asks_what_is_held_is_in_the_journal
            who_is_not_known_is_erased_all_the_same
            a_large_fan_out_is_erased_in_small_steps
            who_is_fenced_erases_nothing;
    }
    cases
}

/// The master key of stores that hold nothing but what tests put there.
pub fn master_key_of_tests() -> Masters {
    let key = MasterKey::parse("eTCMQLiQ1WZ3aITDlrR/+iyAzDYqPegWJRe4Ws+PyBg=");
    Masters::new(key.expect("32 random bytes"))
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::memory::MemoryStore;
    use crate::sqlite::Sqlite;

    #[tokio::test]
    async fn the_memory_store_keeps_the_contract() {
        run(async || MemoryStore::default()).await;
    }

    #[tokio::test]
    async fn the_sqlite_store_keeps_the_contract() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        run(async || {
            let count = std::fs::read_dir(parent.path()).expect("the folder is there").count();
            Sqlite::open_folder(&parent.path().join(count.to_string()), crate::conformance::master_key_of_tests())
                .expect("a fresh folder opens")
        })
        .await;
    }
}
