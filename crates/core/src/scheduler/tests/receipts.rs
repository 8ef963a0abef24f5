//! Tests of receipts: missing, early, late, and for deliveries that were never sent.

use super::*;

#[test]
fn a_receipt_before_a_put_back_counts_only_if_an_attempt_was_made() {
    let mut queue = queue(Order::Fifo);
    let sent_before = Delivery { attempts: 1, last_cause: Some(Cause::Unknown), ..delivery(1) };
    for delivery in [&sent_before, &delivery(2)] {
        admit(&mut queue, delivery);
        assert_eq!(send(&mut queue, NOW), Some(delivery.id.raw()));
        assert_eq!(queue.receipt(NOW, delivery.id), None, "it is in flight");
        queue.put_back(NOW, delivery.id, NOW);
        let pick = queue.next(NOW, ROLL);
        if delivery.attempts > 0 {
            let arrived = |record: &DeliveryChange| record.delivery.state == State::Delivered { at: NOW };
            assert!(matches!(&pick, Some(Pick::Record(record)) if arrived(record)), "{pick:?}");
        } else {
            assert!(matches!(pick, Some(Pick::Send(_))), "no receiver can have it: {pick:?}");
            let record = settle(&mut queue, NOW, 2, &Verdict::of(Cause::InternalError));
            assert_eq!(record.delivery.state.phase().name(), "retry");
        }
    }
}

#[test]
fn a_receipt_for_a_delivery_that_was_never_sent_is_ignored() {
    let mut queue = queue(Order::Fifo);
    admit(&mut queue, &delivery(1));
    send(&mut queue, NOW);
    let id = DeliveryId::from_raw(1);
    assert_eq!(queue.settle(NOW, ROLL, id, &Verdict::of(Cause::StoreUnavailable), false), None, "no attempt was made");
    assert_eq!(queue.receipt(NOW, id), None);
    assert_eq!(queue.refused_moves(), 0);
    send(&mut queue, NOW + seconds(2));
}

#[test]
fn a_missing_receipt_is_handled_once_the_lane_s_settings_are_known() {
    let mut queue = Scheduler::new(Limits::default());
    let waits = Delivery { state: State::AwaitingAck { until: NOW + seconds(3) }, attempts: 1, ..delivery(1) };
    queue.admit(NOW, waits, RowIndex::Delayed);
    let late = NOW + seconds(10);
    assert_eq!(queue.next(late, ROLL), None, "the policy is not known yet");
    queue.set_lane(late, &Arc::new(settings(LANE, Order::Fifo)));
    let wake = queue.wake_at().expect("a timer checks it again");
    assert!(wake <= late + ASK_AGAIN);
    let Some(Pick::Record(record)) = queue.next(wake, ROLL) else { panic!("no receipt came") };
    let again = State::Retry { due: wake + seconds(2), cause: Cause::AckTimeout };
    assert_eq!((record.delivery.state, record.delivery.attempts), (again, 1));
}

#[test]
fn a_receipt_that_overtakes_the_answer_is_applied_by_the_settle() {
    let mut queue = queue(Order::Fifo);
    admit(&mut queue, &Delivery { ack_within: Some(seconds(60)), ..delivery(1) });
    send(&mut queue, NOW);
    assert_eq!(queue.receipt(NOW, DeliveryId::from_raw(1)), None);
    let record = settle(&mut queue, NOW, 1, &OK);
    assert_eq!(record.delivery.state, State::Delivered { at: NOW });
}

#[test]
fn a_receipt_during_the_write_of_the_answer_ends_the_delivery_afterwards() {
    let mut queue = queue(Order::Fifo);
    admit(&mut queue, &Delivery { ack_within: Some(seconds(60)), ..delivery(1) });
    send(&mut queue, NOW);
    let record = settle(&mut queue, NOW, 1, &OK);
    assert_eq!(record.delivery.state, State::AwaitingAck { until: NOW + seconds(60) });
    assert_eq!(queue.receipt(NOW, record.delivery.id), None);
    let AfterRecord::Again(again) = queue.recorded(NOW, record.delivery.id) else { panic!("the receipt is lost") };
    assert_eq!(again.delivery.state, State::Delivered { at: NOW });
}
